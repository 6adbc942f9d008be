"""Translate lines with a trained model: ``python -m src.translate --run runs/fra < in > out``.

Reads UTF-8, a sentence a line, and writes a line for each. An empty line stays empty. With
``--nbest``, ``--scores`` or ``--align`` the fields of a line are set apart by `` ||| ``: with
``--nbest`` first the number of the sentence, from 0; then the translation; its score; and its
alignment, ``0-0 2-1`` for "source word 0 with target word 0, 2 with 1", as in Moses: words are what
white space sets apart in the source line and in the translation. White space in a translation is
written as one space, so that it stays in its line, and among fields its word ``|||`` as ``||``.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from src.cli.options import Parser, complain
from src.config import TransformerConfig
from src.data.batches import encode_source
from src.data.tokenization import Tokenizer
from src.decoding import LARGEST_PENALTY
from src.files import naming, replacing
from src.training.checkpoints import (
    CheckpointError,
    load_checkpoint,
    read_header,
    vocabularies,
)
from src.training.distributed import pick_device
from src.training.evaluation import Translation, align_words, translate_nbest
from src.transformer import Transformer

PROGRAM = "src.translate"
SEPARATOR = " ||| "


def build_parser() -> Parser:
    """All options."""
    parser = Parser(prog=f"python -m {PROGRAM}", description=__doc__)
    number = {"type": int, "metavar": "INT"}
    option = parser.option
    option(parser, "--run", metavar="DIR", help="folder of a run of src.train")
    option(
        parser,
        "--checkpoint",
        metavar="FILE",
        help="one of its checkpoints",
        shown="best.safetensors, or last.safetensors if there is no best",
    )
    option(
        parser,
        "--input",
        metavar="FILE",
        help="text to translate",
        shown="standard input",
    )
    option(
        parser,
        "--output",
        metavar="FILE",
        help="file to write, complete or not at all",
        shown="standard output",
    )
    option(
        parser, "--beam-size", **number, default=4, help="beginnings kept; 1 is greedy"
    )
    option(
        parser,
        "--length-penalty",
        type=float,
        metavar="FLOAT",
        default=0.6,
        help="higher favours longer translations",
    )
    option(
        parser,
        "--nbest",
        **number,
        help="translations a sentence",
        shown="1, without number",
    )
    option(parser, "--scores", action="store_true", default=False, help="write scores")
    option(
        parser,
        "--align",
        action="store_true",
        default=False,
        help="write alignments of words, from the cross-attention of the last layer",
    )
    option(
        parser,
        "--max-len",
        **number,
        help="most tokens of a translation",
        shown="twice the source's and 10 more",
    )
    option(parser, "--batch-size", **number, default=64, help="most sentences at once")
    option(
        parser,
        "--max-tokens",
        **number,
        default=8192,
        help="most cells at once, beam counted",
    )
    option(
        parser,
        "--buffer",
        **number,
        default=1024,
        help="lines read before they are translated, sorted by length",
    )
    option(
        parser,
        "--device",
        metavar="NAME",
        help="such as cpu or cuda:1",
        shown="the best at hand",
    )
    return parser


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
    source, target = (
        Tokenizer.from_file(run / f"{n}.json") for n in ("source", "target")
    )
    header = read_header(checkpoint)
    try:
        config = TransformerConfig.from_dict(header["config"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} holds no translator: {error}") from error
    sizes = (config.src_vocab_size, config.tgt_vocab_size)
    if sizes != (len(source), len(target)):
        raise CheckpointError(
            f"{checkpoint} belongs to another run: its vocabularies have {sizes[0]} and "
            f"{sizes[1]} tokens, those of {run} have {len(source)} and {len(target)}"
        )
    known = header.get("vocabularies")  # older files have none
    if known is not None and known != vocabularies(run):
        raise CheckpointError(
            f"{checkpoint} belongs to another run: source.json and target.json of {run} are not "
            "those that it was trained with"
        )
    model = Transformer(config)
    load_checkpoint(checkpoint, model)
    return model.eval(), source, target


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Lines of UTF-8 without their ends.

    Raises:
        ValueError: If a line is not UTF-8; names it.
    """
    with naming(name):
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
    """Standard output, or a file that appears when it is complete and keeps its old self if not.

    What is no regular file, such as ``/dev/null`` or a pipe, is written to as it is; a link stays
    one.

    Raises:
        OSError: If it cannot be written; names it.
    """
    if path is None:
        with naming("standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):
        with naming(path), open(path, "wb") as stream:
            yield stream
        return
    real = Path(path).resolve()
    with replacing(real) as partial, open(partial, "wb") as stream:
        yield stream


def translated(
    lines: Iterable[str],
    name: str,
    model: nn.Module,
    source: Tokenizer,
    target: Tokenizer,
    options: dict[str, Any],
) -> Iterator[str]:
    """Translate the lines of a file of that name, buffer by buffer, into lines of output.

    Raises:
        ValueError: If a line is longer than the model takes; names it.
    """
    many = options["nbest"] or 1
    names = ("beam_size", "length_penalty", "batch_size", "max_tokens", "max_len")
    settings = {name: options[name] for name in names}
    lines, first = iter(lines), 0
    while buffer := list(islice(lines, options["buffer"])):
        for number, line in enumerate(buffer, start=first + 1):
            length, most = len(encode_source(line, source)), model.config.max_len
            if length > most:
                raise ValueError(
                    f"{name}, line {number}: {length} tokens, but the model takes at most {most}"
                )
        found = translate_nbest(
            model, buffer, source, target, num_return=many, **settings
        )
        for number, (line, hypotheses) in enumerate(
            zip(buffer, found, strict=True), start=first
        ):
            for hypothesis in hypotheses:
                yield SEPARATOR.join(
                    ([str(number)] if options["nbest"] else [])
                    + fields_of(line, hypothesis, model, source, target, options)
                )
        first += len(buffer)


def fields_of(
    line: str,
    hypothesis: Translation,
    model: nn.Module,
    source: Tokenizer,
    target: Tokenizer,
    options: dict[str, Any],
) -> list[str]:
    """Translation, score and alignment, as far as they are asked for."""
    words = hypothesis.text.split()
    if options["scores"] or options["nbest"] or options["align"]:
        words = ["||" if word == SEPARATOR.strip() else word for word in words]
    fields = [" ".join(words)]
    if options["scores"] or options["nbest"]:
        fields.append(f"{hypothesis.score:.4f}")
    if options["align"]:
        pairs = align_words(model, line, hypothesis.ids, source, target)
        fields.append(" ".join(f"{s}-{t}" for s, t in pairs))
    return fields


def run(options: dict[str, Any]) -> None:
    """Translate as the options say."""
    model, source, target = load_run(options["run"], options["checkpoint"])
    model.to(pick_device(options["device"]))
    name = options["input"] or "standard input"
    opened = open(name, "rb") if options["input"] else nullcontext(sys.stdin.buffer)
    with opened as stream, output_file(options["output"]) as output:
        lines = read_lines(stream, name)
        for line in translated(lines, name, model, source, target, options):
            output.write(line.encode() + b"\n")
            if options["input"] is None:
                output.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 2 after bad input."""
    parser = build_parser()
    options = parser.defaults | parser.given(argv)
    if options["run"] is None:
        parser.error("--run must say where the trained model is")
    parser.at_least(
        options, beam_size=1, nbest=1, max_len=1, batch_size=1, max_tokens=1, buffer=1
    )
    if (options["nbest"] or 1) > options["beam_size"]:
        parser.error(
            f"--nbest must be at most --beam-size = {options['beam_size']}, got {options['nbest']}"
        )
    if not 0 <= options["length_penalty"] <= LARGEST_PENALTY:
        parser.error(
            f"--length-penalty must be in [0, {LARGEST_PENALTY}], got {options['length_penalty']}"
        )
    try:
        run(options)
        return 0
    except BrokenPipeError:  # whoever read the output has seen enough
        return 0
    except (ValueError, OSError) as error:
        _flush()
        return complain(PROGRAM, error)
    except KeyboardInterrupt:
        _flush()
        complain(PROGRAM, InterruptedError("interrupted"))
        return 130


def _flush() -> None:
    """Write what was translated before the message that says why there is no more."""
    with suppress(OSError):
        sys.stdout.flush()


def _discard_stdout() -> None:
    """Keep the interpreter from writing once more, at its end, to where it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    status = main()
    try:
        sys.stdout.flush()
    except OSError:  # reported, or a broken pipe
        _discard_stdout()
    sys.exit(status)
