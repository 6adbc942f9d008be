"""The tables and plots of the page "How fast is it", made from the committed results."""

import io
import json
from statistics import median

import matplotlib
from repository import ROOT

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = ROOT / "src" / "results"
BLUE, RED = "#0072B2", "#D55E00"  # Okabe and Ito
PEERS = ("nn.Transformer", "MarianMT", "x-transformers")
GOALS = {
    "training": ("Training, identical padded batches", {"best": 1.15}),
    "mixed_lengths": ("Training, a corpus of mixed lengths", {"nn.Transformer": 1.8}),
    "greedy": ("Greedy decoding, 16 sentences × 48 tokens", {"MarianMT": 2.5}),
    "beam": ("Beam of five, the same sentences", {"MarianMT": 2.5}),
}

CAPTION = (
    '<figcaption><span class="caption-text">Memory against the number of tokens, on logarithmic'
    " axes, for both backends of attention.</span></figcaption>"
)


def load(name: str) -> dict | None:
    """Read a result, or None where it was not measured."""
    path = RESULTS / f"speed_{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def source(result: dict) -> str:
    """Say where, when and how a result was measured."""
    machine, versions = result["machine"], result["versions"]
    where = machine.get("gpu") or f"{machine['cpu']}, {_count(machine['threads'], 'thread')}"
    return (
        f"Measured on {result['date']}: {where}, PyTorch {versions['torch']}, with "
        f"`{result['command']}`."
    )


def speed() -> str:
    """Return tables of ratios with what was to be reached, one section a kind of work."""
    lines = []
    for key, (title, goals) in GOALS.items():
        result = load("decoding" if key in ("greedy", "beam") else key)
        lines += [f"### {title}", ""]
        if result is None:
            lines += [_unmeasured("decoding" if key in ("greedy", "beam") else key), ""]
            continue
        found = result["data"].get(key, result["data"])
        said = (_verdict(found, goals), _bound(found), source(result))
        lines += [_ratio_table(found), "", " ".join(filter(None, said)), ""]
    return "\n".join([*lines, _memory(), _share(), _bfloat16()])


def gpu() -> str:
    """Return the table of the GPU, or say plainly that nothing was measured."""
    result = load("gpu")
    if result is None:
        return (
            "None of this is measured yet: no GPU was at hand. `python -m benchmarks.speed.gpu` "
            "measures training of `base` and `big` in bfloat16, compiled, beside "
            "`nn.Transformer` under autocast, the share of the rate of matrix products, and greedy "
            "decoding beside Marian's `generate`, in a few minutes on one device; "
            "`sh tools/gpu.sh` runs the tests marked `gpu` first. Its result appears here."
        )
    data = result["data"]
    lines = ["| work | tokens a second | share of products | against |", "|---|---|---|---|"]
    for name, row in data["training"].items():
        ratio = row["ratios"]["nn.Transformer"]["median"]
        lines.append(
            f"| training `{name}` | {row['rates']['ours']:,.0f} | {row['share']:.0%} | "
            f"{ratio:.2f} × `nn.Transformer` |"
        )
    row = data["decoding"]
    lines.append(
        f"| greedy decoding | {row['rates']['ours']:,.0f} | | "
        f"{row['ratios']['MarianMT']['median']:.2f} × Marian |"
    )
    return "\n".join([*lines, "", source(result)])


def plan() -> str:
    """Return what the paper's training takes, on 1, 8 and 64 devices."""
    result = load("plan")
    data, gpu_result = result["data"], load("gpu")
    if gpu_result is None:
        rate, said = 100e12, "at an **assumed** 100 TFLOP/s a device, since no GPU was at hand"
    else:
        base = gpu_result["data"]["training"]["base"]
        rate = base["share"] * gpu_result["data"]["limit"]
        said = f"at the {rate / 1e12:.0f} TFLOP/s that `base` reaches on one device (above)"
    settings = data["settings"]
    lines = [
        f"The base model has {data['parameters'] / 1e6:.0f} million weights. One target token with "
        f"its source token costs {data['flops_per_token'] / 1e6:.0f} MFLOP, forwards and "
        f"backwards, counted by PyTorch's FLOP counter. The paper makes {settings['updates']:,} "
        f"updates of about {settings['tokens_per_update']:,} target tokens: "
        f"{data['flops'] / 1e18:.2f} · 10¹⁸ FLOP. Here is what that takes {said}.",
        "",
        "| devices | hours | tokens a device and update | weights, gradients, moments a device | "
        "sent by each device, an update |",
        "|---|---|---|---|---|",
    ]
    for n in settings["devices"]:
        hours = data["flops"] / rate / n / 3600
        lines.append(
            f"| {n} | {hours:.2g} | {settings['tokens_per_update'] / n:,.0f} | "
            f"{data['state_bytes'] / 2**30:.2f} GiB | "
            f"{data['sent_bytes'][str(n)] / 2**20:,.0f} MiB |"
        )
    lines += [
        "",
        "Hours count matrix work alone, divided evenly. With 64 devices each gets a few hundred "
        "tokens an update, too few to fill it, and every update waits for half a gigabyte of "
        "gradients: the batch would have to grow, and with it the learning rate's schedule. Eight "
        "devices are the reasonable choice for this model, as they were for the paper.",
        "",
        f"Counted with `{result['command']}`.",
    ]
    return "\n".join(lines)


def _ratio_table(found: dict) -> str:
    lines = ["| model | tokens a second | ours is faster by | lowest and highest round |"]
    lines.append("|---|---|---|---|")
    for name, rate in found["rates"].items():
        ratio = found["ratios"][name]
        spread = f"{ratio['low']:.2f} … {ratio['high']:.2f}" if name != "ours" else ""
        lines.append(f"| {name} | {rate:,.0f} | {ratio['median']:.2f} × | {spread} |")
    return "\n".join(lines)


def _verdict(found: dict, goals: dict) -> str:
    ((name, goal),) = goals.items()
    ratios = {peer: found["ratios"][peer]["median"] for peer in PEERS if peer in found["ratios"]}
    against = min(ratios, key=ratios.get) if name == "best" else name
    reached = ratios[against]
    word = "reached" if reached >= goal else "**missed**"
    return f"Goal: {goal} × {against}; {word} with {reached:.2f} ×."


def _bound(found: dict) -> str:
    """Say what the ratio would be with nothing around the matrix products, where that is known."""
    if "product_seconds" not in found:
        return ""
    seconds, products = found["seconds"], found["product_seconds"]
    share = products / median(seconds["ours"])
    bound = median(seconds["MarianMT"]) / products
    rate = found["product_flops"] / products / 1e9
    return (
        f"Matrix products are {share:.0%} of our time; with nothing else around them the ratio "
        f"would be {bound:.1f} ×. With so few rows they run at {rate:.0f} GFLOP/s."
    )


def _memory() -> str:
    result = load("attention_memory")
    if result is None:
        return f"### Memory against length\n\n{_unmeasured('attention_memory')}\n"
    found = result["data"]["bytes"]
    lines = ["### Memory against length", ""]
    lines += [_plot(found), ""]
    lines += ["| tokens | fused (`sdpa`) | explicit |", "|---|---|---|"]
    for n in found["sdpa"]:
        explicit = found["explicit"].get(n)
        cell = f"{explicit / 2**20:,.0f} MiB" if explicit else "not tried"
        lines.append(f"| {int(n):,} | {found['sdpa'][n] / 2**20:,.1f} MiB | {cell} |")
    lines += [
        "",
        "One head attends forwards and backwards; each row is a fresh process. The explicit "
        "backend keeps a weight for every pair of tokens, four times as much for twice the "
        "length; the fused one keeps what is as long as the sentence. " + source(result),
        "",
    ]
    return "\n".join(lines)


def _plot(found: dict[str, dict[str, int]]) -> str:
    """Return memory against length as an inline SVG with a text alternative."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "memory", "font.family": "DejaVu Sans"}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(6.8, 3.0), layout="constrained")
        marks = (("explicit", RED, "s", "--"), ("sdpa", BLUE, "o", "-"))
        for name, color, marker, dash in marks:
            sizes = {int(n): size / 2**20 for n, size in found[name].items()}
            axes.loglog(sizes.keys(), sizes.values(), dash, color=color, marker=marker, label=name)
        axes.set(xlabel="tokens", ylabel="MiB")
        axes.grid(color="#dddddd")
        axes.legend(frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
        plt.close(figure)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace(
        "<svg ",
        '<svg role="img" aria-label="Memory against the number of tokens on logarithmic axes: the '
        'explicit backend rises twice as steeply as the fused one" style="background:#fff;'
        'max-width:100%;height:auto;border-radius:6px" ',
        1,
    )
    return f"```{{raw}} html\n<figure>{svg}{CAPTION}</figure>\n```"


def _share() -> str:
    result = load("matmul_share")
    title = "### Share of the machine's own rate of matrix products\n"
    if result is None:
        return f"{title}\n{_unmeasured('matmul_share')}\n"
    lines = [title, "| precision | products | training `base` | share | tokens a second |"]
    lines.append("|---|---|---|---|---|")
    for name, row in result["data"]["precisions"].items():
        lines.append(
            f"| {name} | {row['limit'] / 1e9:,.0f} GFLOP/s | {row['rate'] / 1e9:,.0f} GFLOP/s | "
            f"{row['share']:.0%} | {row['tokens_per_second']:,.0f} |"
        )
    share = result["data"]["precisions"]["float32"]["share"]
    word = "reached" if share >= 0.6 else "**missed**"
    lines += ["", f"Goal: 60 %; {word} in float32 with {share:.0%}. " + source(result), ""]
    return "\n".join(lines)


def _bfloat16() -> str:
    result = load("bfloat16")
    title = "### Bfloat16 on a CPU\n"
    if result is None:
        return (
            f"{title}\nNot measured yet: it needs a processor with instructions for bfloat16 "
            "(AVX512-BF16 or AMX), and none was at hand. `python -m benchmarks.speed.bfloat16` "
            "measures it where there is one.\n"
        )
    data = result["data"]
    ratio = data["ratios"]["float32"]["median"]
    gap = max(abs(a - b) for a, b in zip(*data["losses"].values(), strict=True))
    updates = len(data["losses"]["float32"])
    return (
        f"{title}\nTraining in bfloat16 runs at {ratio:.2f} × the speed of float32; over {updates} "
        f"updates the two losses differ by at most {gap:.2f}. " + source(result) + "\n"
    )


def _unmeasured(name: str) -> str:
    return f"Not measured yet: `python -m benchmarks.speed.{name}`."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
