"""The tables and plots of "How fast is it".

They are made from the committed results; where a result lacks something, nothing is said of it.
"""

import io
import json
from statistics import median

import matplotlib

from repository import ROOT

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = ROOT / "src" / "results"
BLUE, RED = "#0072B2", "#D55E00"  # Okabe and Ito
PEERS = ("nn.Transformer", "MarianMT", "x-transformers")
GOALS = {
    "training": ("Training, identical padded batches", {"best": 1.15}),
    "mixed_lengths": ("Training, a corpus of mixed lengths", {"nn.Transformer": 1.8}),
    "greedy": ("Greedy decoding, 16 sentences × 48 tokens", {"MarianMT": 2.5}),
    "beam": ("Beam of five, the same sentences", {"MarianMT": 2.5}),
}
TORCH, MARIAN = "nn.Transformer", "MarianMT"
# What is asked of a GPU: name, where the number stands in the result, lowest number that will do.
GPU_GOALS = (
    ("share of the rate of products, training `base`", ("training", "base", "share"), 0.35),
    ("share of the rate of products, training `big`", ("training", "big", "share"), 0.5),
    *(
        (
            f"training `{name}` against `nn.Transformer` under autocast",
            ("training", name, "ratios", TORCH, "median"),
            1.5,
        )
        for name in ("base", "big")
    ),
    ("greedy decoding against Marian", ("decoding", "ratios", MARIAN, "median"), 5),
)
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
    if result.get("name", "").endswith(("_gpu", "_cuda")):
        where = machine["gpu"]
    else:  # a CPU's, also where the machine has a GPU
        where = f"{machine['cpu']}, {_count(machine['threads'], 'thread')}"
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
            lines += [unmeasured("decoding" if key in ("greedy", "beam") else key), ""]
            continue
        found = result["data"].get(key, result["data"])
        said = (_verdict(found, goals), _bound(found), source(result))
        lines += [_ratio_table(found), "", " ".join(filter(None, said)), "", *_operators(found)]
    return "\n".join([*lines, _memory(), _share(), _bfloat16()])


def gpu() -> str:
    """Return the goals for a GPU and what was measured, or say plainly that nothing was."""
    result = load("gpu")
    lines = ["| goal | at least | measured | verdict |", "|---|---|---|---|"]
    for name, place, goal in GPU_GOALS:
        found = result and result["data"]
        for key in place:
            found = found and found.get(key)
        form = "{:.0%}" if place[-1] == "share" else "{:.2f} ×"
        cells = "not measured | "
        if found:
            cells = f"{form.format(found)} | {'reached' if found >= goal else '**missed**'}"
        lines.append(f"| {name} | {form.format(goal)} | {cells} |")
    lines.append("")
    if result is None:
        lines.append(
            "None of this is measured yet: no GPU was at hand. `python -m benchmarks.speed.gpu` "
            "measures training of `base` and `big` in bfloat16, compiled, beside "
            "`nn.Transformer` under autocast, the share of the rate of matrix products, and greedy "
            "decoding beside Marian's `generate`, in a few minutes on one device; "
            "`sh tools/gpu.sh` also runs the tests marked `gpu` and measures memory and share "
            "there. The results appear here."
        )
    else:
        lines += [_gpu_table(result["data"]), "", source(result)]
    for name, section in (("attention_memory_cuda", _memory), ("matmul_share_cuda", _share)):
        if load(name) is not None:
            lines += ["", section(name)]
    return "\n".join(lines)


def _gpu_table(data: dict) -> str:
    lines = ["| work | tokens a second | share of products | against |", "|---|---|---|---|"]
    for name, row in data["training"].items():
        lines.append(
            f"| training `{name}` | {row['rates']['ours']:,.0f} | "
            f"{row['share']:.0%}{_between(row.get('share_spread'), '{:.0%}')} | "
            f"{_times(row['ratios'][TORCH])} `nn.Transformer` |"
        )
    row = data["decoding"]
    lines.append(
        f"| greedy decoding | {row['rates']['ours']:,.0f} | | {_times(row['ratios'][MARIAN])} "
        "Marian |"
    )
    said = f"Products run at {data['limit'] / 1e12:.0f} TFLOP/s"
    spread = data.get("limit_spread")
    if spread:
        said += f" ({spread['low'] / 1e12:.0f} … {spread['high'] / 1e12:.0f})"
    return "\n".join([*lines, "", said + "; in brackets the lowest and the highest round."])


def _times(ratio: dict) -> str:
    return f"{ratio['median']:.2f} ×{_between(ratio, '{:.2f}')}"


def _between(spread: dict | None, form: str) -> str:
    if not spread:
        return ""
    return f" ({form.format(spread['low'])} … {form.format(spread['high'])})"


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
    said = (
        f"Matrix products are {share:.0%} of our time; with nothing else around them the ratio "
        f"would be {bound:.1f} ×."
    )
    if "product_flops" in found:
        rate = found["product_flops"] / products / 1e9
        said += f" With so few rows they run at {rate:.0f} GFLOP/s."
    return said


def _operators(found: dict) -> list[str]:
    """List what our time goes into, where that is known."""
    if "operators" not in found:
        return []
    lines = ["| operator | share of the time within operators |", "|---|---|"]
    for name, share in found["operators"].items():
        lines.append(f"| {name if name == 'rest' else f'`{name}`'} | {share:.0%} |")
    return [*lines, ""]


def _memory(name: str = "attention_memory") -> str:
    result = load(name)
    title = f"### Memory against length{_where(name)}\n"
    if result is None:
        return f"{title}\n{unmeasured(name)}\n"
    found = result["data"]["bytes"]
    lines = [title]
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
        "length; the fused one keeps what is as long as the sentence, beside a fixed part that "
        "shows in short ones. " + _slopes(result["data"].get("slopes")) + source(result),
        "",
    ]
    return "\n".join(lines)


def _slopes(slopes: dict[str, float] | None) -> str:
    """Say which power of the length memory grows with, where that was fitted."""
    said = []
    for backend, goal, word in (("sdpa", 1, "linear"), ("explicit", 2, "quadratic")):
        if slopes and backend in slopes:
            verdict = word if round(slopes[backend]) == goal else f"**not {word}**"
            name = "fused" if backend == "sdpa" else backend
            said.append(f"{name}: {verdict}, slope {slopes[backend]:.1f}")
    return f"On the logarithmic axes, {'; '.join(said)}. " if said else ""


def _where(name: str) -> str:
    return " on the GPU" if name.endswith("_cuda") else ""


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


def _share(name: str = "matmul_share") -> str:
    result = load(name)
    title = f"### Share of the machine's own rate of matrix products{_where(name)}\n"
    if result is None:
        return f"{title}\n{unmeasured(name)}\n"
    lines = [title, "| precision | products | training `base` | share | tokens a second |"]
    lines.append("|---|---|---|---|---|")
    found = result["data"]["precisions"]
    for precision, row in found.items():
        spread = row.get("spread", {})
        lines.append(
            f"| {precision} | {row['limit'] / 1e9:,.0f} GFLOP/s | "
            f"{row['rate'] / 1e9:,.0f} GFLOP/s | "
            f"{row['share']:.0%}{_between(spread.get('share'), '{:.0%}')} | "
            f"{row['tokens_per_second']:,.0f} |"
        )
    if "bfloat16" not in found:
        device = "device" if _where(name) else "processor"
        lines.append(f"| bfloat16 | not measured: this {device} has no instructions for it | | | |")
    said = []
    share = found["float32"]["share"]
    if not _where(name):
        word = "reached" if share >= 0.6 else "**missed**"
        said.append(f"Goal: 60 %; {word} in float32 with {share:.0%}.")
    if "spread" in found["float32"]:
        said.append("In brackets the lowest and the highest round.")
    else:
        said.append(f"Each rate is the best of {result['data']['settings']['rounds']} rounds.")
    return "\n".join([*lines, "", " ".join([*said, source(result)]), ""])


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


def unmeasured(name: str) -> str:
    """Say that a result is missing, and how to get it."""
    return f"Not measured yet: `python -m benchmarks.speed.{name}`."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
