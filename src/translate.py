"""Translate lines with a trained model: ``python -m src.translate --run runs/fra < in > out``.

Reads UTF-8, a sentence a line, and writes a line for each. An empty line stays empty. With
``--nbest``, ``--scores`` or ``--align`` the fields of a line are set apart by `` ||| ``: with
``--nbest`` first the number of the sentence, from 0; then the translation; its score; and its
alignment, ``0-0 2-1`` for "source token 0 with target token 0, 2 with 1", over the model's own
tokens.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from src.checkpoints import CheckpointError, load_checkpoint, read_header
from src.data import Tokenizer
from src.distributed import pick_device
from src.evaluation import Translation, align, translate_nbest
from src.options import Parser, complain
from src.transformer import Transformer, TransformerConfig

PROGRAM = "src.translate"
SEPARATOR = " ||| "


def build_parser() -> Parser:
    """All options."""
    parser = Parser(prog=f"python -m {PROGRAM}", description=__doc__)
    number = {"type": int, "metavar": "INT"}
    option = parser.option
    option(parser, "--run", metavar="DIR", help="folder of a run of src.train")
    option(parser, "--checkpoint", metavar="FILE", help="one of its checkpoints",
           shown="best.safetensors, or last.safetensors if there is no best")
    option(parser, "--input", metavar="FILE", help="text to translate", shown="standard input")
    option(parser, "--output", metavar="FILE", help="file to write, complete or not at all",
           shown="standard output")
    option(parser, "--beam-size", **number, default=4, help="beginnings kept; 1 is greedy")
    option(parser, "--length-penalty", type=float, metavar="FLOAT", default=0.6,
           help="higher favours longer translations")
    option(parser, "--nbest", **number, help="translations a sentence", shown="1, without number")
    option(parser, "--scores", action="store_true", default=False, help="write scores")
    option(parser, "--align", action="store_true", default=False,
           help="write alignments, from the cross-attention of the last layer")
    option(parser, "--max-len", **number, help="most tokens of a translation",
           shown="twice the source's and 10 more")
    option(parser, "--batch-size", **number, default=64, help="most sentences at once")
    option(parser, "--max-tokens", **number, default=8192, help="most cells at once, beam counted")
    option(parser, "--buffer", **number, default=1024,
           help="lines read before they are translated, sorted by length")
    option(parser, "--device", metavar="NAME", help="such as cpu or cuda:1",
           shown="the best at hand")
    return parser  # fmt: skip


def load_run(
    run: str | Path, checkpoint: str | Path | None = None
) -> tuple[Transformer, Tokenizer, Tokenizer]:
    """The model of a run with its weights, and its source and target tokenizers.

    Args:
        run: Folder that `src.train` wrote.
        checkpoint: File with the weights; by default the best of the run, or else the last.

    Raises:
        FileNotFoundError: If something is missing.
        CheckpointError: If the checkpoint belongs to another run.
    """
    run = Path(run)
    if checkpoint is None:
        best = run / "best.safetensors"
        checkpoint = best if best.exists() else run / "last.safetensors"
    source, target = (Tokenizer.from_file(run / f"{n}.json") for n in ("source", "target"))
    config = TransformerConfig.from_dict(read_header(checkpoint)["config"])
    sizes = (config.src_vocab_size, config.tgt_vocab_size)
    if sizes != (len(source), len(target)):
        raise CheckpointError(
            f"{checkpoint} belongs to another run: its vocabularies have {sizes[0]} and "
            f"{sizes[1]} tokens, those of {run} have {len(source)} and {len(target)}"
        )
    model = Transformer(config)
    load_checkpoint(checkpoint, model)
    return model.eval(), source, target


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Lines of UTF-8 without their ends.

    Raises:
        ValueError: If a line is not UTF-8; names it.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8, {error.reason} at byte {error.start}"
            ) from error
        yield text.removesuffix("\n").removesuffix("\r")


@contextmanager
def output_file(path: str | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that appears when it is complete and keeps its old self if not."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = Path(f"{path}.partial")
    try:
        with open(partial, "wb") as stream:
            yield stream
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def translated(
    lines: Iterable[str], model: nn.Module, source: Tokenizer, target: Tokenizer,
    options: dict[str, Any],
) -> Iterator[str]:  # fmt: skip
    """Translate lines, buffer by buffer, into lines of output."""
    many = options["nbest"] or 1
    names = ("beam_size", "length_penalty", "batch_size", "max_tokens", "max_len")
    settings = {name: options[name] for name in names}
    lines, first = iter(lines), 0
    while buffer := list(islice(lines, options["buffer"])):
        found = translate_nbest(model, buffer, source, target, num_return=many, **settings)
        for number, (line, hypotheses) in enumerate(zip(buffer, found, strict=True), start=first):
            for hypothesis in hypotheses:
                yield SEPARATOR.join(
                    ([str(number)] if options["nbest"] else [])
                    + fields_of(line, hypothesis, model, source, target, options)
                )
        first += len(buffer)


def fields_of(
    line: str, hypothesis: Translation, model: nn.Module, source: Tokenizer, target: Tokenizer,
    options: dict[str, Any],
) -> list[str]:  # fmt: skip
    """Translation, score and alignment, as far as they are asked for."""
    fields = [hypothesis.text]
    if options["scores"] or options["nbest"]:
        fields.append(f"{hypothesis.score:.4f}")
    if options["align"]:
        pairs = align(model, line, hypothesis.ids, source, target)
        fields.append(" ".join(f"{s}-{t}" for s, t in pairs))
    return fields


def run(options: dict[str, Any]) -> None:
    """Translate as the options say."""
    model, source, target = load_run(options["run"], options["checkpoint"])
    model.to(pick_device(options["device"]))
    name = options["input"]
    stream = open(name, "rb") if name else sys.stdin.buffer
    with stream, output_file(options["output"]) as output:
        lines = read_lines(stream, name or "standard input")
        for line in translated(lines, model, source, target, options):
            output.write(line.encode() + b"\n")
            if name is None:
                output.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 2 after bad input."""
    parser = build_parser()
    options = parser.defaults | parser.given(argv)
    if options["run"] is None:
        parser.error("--run must say where the trained model is")
    if options["buffer"] < 1:
        parser.error(f"--buffer must be at least 1, got {options['buffer']}")
    try:
        run(options)
        return 0
    except BrokenPipeError:  # whoever read the output has seen enough
        _discard_stdout()
        return 0
    except (ValueError, OSError) as error:
        _discard_stdout()
        return complain(PROGRAM, error)
    except KeyboardInterrupt:
        _discard_stdout()
        complain(PROGRAM, InterruptedError("interrupted"))
        return 130


def _discard_stdout() -> None:
    """Keep the interpreter from writing once more, at its end, to where it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
