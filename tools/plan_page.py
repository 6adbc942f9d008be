"""The page "What the paper's training would take", from the committed result of the plan."""

from speed_page import load, unmeasured


def plan() -> str:
    """Return what the paper's training takes, on 1, 8 and 64 devices."""
    result = load("plan")
    if result is None:
        return unmeasured("plan")
    data = result["data"]
    settings, rows = data["settings"], data["devices"]
    low, high = (f"{rate / 1e12:.0f}" for rate in data["rates"])
    if data["measured"]:
        rates = f"{low} … {high} TFLOP/s, which `base` reached on one device ({{doc}}`how_fast`)"
    else:
        rates = f"an **assumed** {low} … {high} TFLOP/s, since no GPU was at hand"
    links = " and ".join(f"{link / 1e9:.0f}" for link in settings["links"])
    weights = data["parameters"] / 1e6
    activations, logits = data["activation_bytes_per_token"], data["logit_bytes_per_token"]
    last = data["last_share"]
    update = f"{settings['tokens_per_update']:,}".replace(",", "{,}")  # no space in a formula
    first, split = (rows[str(n)] for n in settings["devices"][:2])
    devices = settings["devices"][1]
    accumulated = sum(split[key] for key in ("state_bytes", "activation_bytes", "logit_bytes"))
    return f"""\
The base model has {weights:.0f} million weights. One target token with its source token costs
{data["flops_per_token"] / 1e6:.0f} MFLOP, forwards and backwards, counted by PyTorch's FLOP
counter. The paper makes {settings["updates"]:,} updates of about
{settings["tokens_per_update"]:,} target tokens: {data["flops"] / 1e18:.2f} · 10¹⁸ FLOP. A device
computes at {rates}. Each device sends at {links} GB/s: two assumptions, for a network between
machines and for links within one.

## Memory

{_memory(rows)}

Of $N$ devices each sees $n = {update} / N$ tokens an update, and holds

* $16 P$ bytes of **state** for $P$ weights: float32 weights, gradients and Adam's two moments. With
  FSDP each device keeps its share alone, $16 P / N$; weights fetched for the layer at work, among
  them the shared embedding, are not counted;
* $a \\cdot n$ bytes of **activations**, which backward needs again; hooks on saved tensors count
  $a$ = {activations / 1e3:.0f} kB a token, in float32 and without padding. It grows with the number
  of tokens, not with the square of a sentence's length, since attention is fused;
* $12 V \\cdot n$ bytes of **logits** for a vocabulary of $V$ = {settings["vocab_size"]:,}: logits,
  their log-softmax and their gradient, {logits / 1e3:.0f} kB a token.

Under autocast many of the activations take two bytes a number instead of four; padding and what
kernels need while they run come on top. **Accumulation** cuts activations and logits, not the
state: an update made of $k$ batches holds $1/k$ of both at a time. With {devices} batches an
update, one device needs
{_gib(accumulated)} instead of {_gib(_total(first))}: as much as each of {devices} devices
without it.

## Messages

{_messages(rows)}

With DDP (distributed data parallel) each device has a whole copy of the model, and the gradients
are added up once an update, however many batches it accumulates: in a ring each device sends
$2 (N - 1) / N$ times the $4 P$ bytes of the gradients. With FSDP (fully sharded) it sends at most
$3 (N - 1) / N$ times $4 P$ bytes: the weights before forward and again before backward, and the
gradients.

## Hours

{_hours(rows)}

**Efficiency** is computing over computing and waiting. While backward runs, two thirds of the
computing, DDP sends what is ready. The gradient of the shared embedding, {last:.0%} of all, is
ready last, since it belongs to the output matrix and to the first layer: sending it is never
hidden. Worst is the fastest device on the slowest link, best the reverse; the hours are those of
{settings["updates"]:,} updates, waiting included, and nothing but matrix products counts as
computing.

With 64 devices each gets a few hundred tokens an update, too few to fill it, and waits for half a
gigabyte of gradients. The batch would have to grow, and with it the learning rate's schedule. Eight
devices within one machine are the reasonable choice for this model, as they were for the paper.

Counted with `{result["command"]}`."""


def _total(row: dict) -> float:
    return row["state_bytes"] + row["activation_bytes"] + row["logit_bytes"]


def _memory(rows: dict[str, dict]) -> str:
    lines = ["| devices | tokens each | state | activations | logits | together | with FSDP |"]
    lines.append("|---|---|---|---|---|---|---|")
    for n, row in rows.items():
        sharded = _total(row) - row["state_bytes"] + row["sharded_state_bytes"]
        sizes = (row["state_bytes"], row["activation_bytes"], row["logit_bytes"], _total(row))
        cells = " | ".join(map(_gib, (*sizes, sharded)))
        lines.append(f"| {n} | {row['tokens']:,.0f} | {cells} |")
    return "\n".join(lines)


def _messages(rows: dict[str, dict]) -> str:
    lines = ["| devices | sent by each, an update (DDP) | milliseconds | state each with FSDP |"]
    lines[0] += " sent with FSDP |"
    lines.append("|---|---|---|---|---|")
    for n, row in rows.items():
        lines.append(
            f"| {n} | {row['sent_bytes'] / 2**20:,.0f} MiB | {_range(row['seconds_sent'], 1e3)} | "
            f"{_gib(row['sharded_state_bytes'])} | {row['sharded_sent_bytes'] / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines)


def _hours(rows: dict[str, dict]) -> str:
    lines = ["| devices | computing, ms an update | sending, ms an update | efficiency | hours |"]
    lines.append("|---|---|---|---|---|")
    for n, row in rows.items():
        efficiency = " … ".join(dict.fromkeys(f"{value:.0%}" for value in row["efficiency"]))
        lines.append(
            f"| {n} | {_range(row['seconds_computed'], 1e3)} | {_range(row['seconds_sent'], 1e3)} "
            f"| {efficiency} | {_range(row['hours'])} |"
        )
    return "\n".join(lines)


def _range(values: list[float], factor: float = 1) -> str:
    return " … ".join(dict.fromkeys(f"{factor * value:.2g}" for value in values))


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
