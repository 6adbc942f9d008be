"""What `src.train` can be told, and where it looks for it."""

from argparse import BooleanOptionalAction
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from src.cli.options import Parser, layered, read_settings
from src.config import TransformerConfig
from src.data.tokenization import SubwordTokenizer, WordTokenizer
from src.training import distributed
from src.training.checkpoints import check_config
from src.training.config import TrainingConfig

PRESETS = {
    "tiny": TransformerConfig.tiny,
    "base": TransformerConfig.base,
    "big": TransformerConfig.big,
}
TOKENIZERS = {"word": WordTokenizer, "subword": SubwordTokenizer}
# These exclude each other: a flag takes away what the configuration file says.
CORPORA, BATCHES = {"tatoeba", "tsv", "moses"}, {"batch_size", "max_tokens"}
# These follow from the tokenizers.
DERIVED = {
    "src_vocab_size",
    "tgt_vocab_size",
    "pad_id",
    "bos_id",
    "eos_id",
    "num_token_types",
}
# What may differ when a run is resumed: how long, when to look, where and how to compute, and how
# the corpus is spelled: its digest says whether it is the same.
FREE = {
    *CORPORA,
    "max_words",
    "steps",
    "epochs",
    "seconds",
    "log_every",
    "eval_every",
    "save_every",
    "patience",
    "compile",
    "config",
    "out",
    "resume",
    "device",
    "sharding",
    "bleu_sentences",
    "beam_size",
    "tensorboard",
    "progress",
}


def build_parser(description: str) -> Parser:
    """All options; those of model and training come from the dataclasses' own fields."""
    parser = Parser(prog="python -m src.train", description=description)
    option = parser.option
    run = parser.add_argument_group("run")
    option(run, "--out", metavar="DIR", help="folder of the run")
    option(
        run, "--config", metavar="FILE", help="TOML or JSON file of settings; flags win"
    )
    option(
        run,
        "--resume",
        action=BooleanOptionalAction,
        default=False,
        help="go on with the run in --out; start it if there is none yet",
    )
    option(
        run,
        "--device",
        metavar="NAME",
        help="such as cpu or cuda:1",
        shown="the best at hand",
    )
    option(
        run,
        "--sharding",
        choices=distributed.SHARDING,
        default="ddp",
        help="how several processes share the work: copies of the model, or parts",
    )
    option(
        run,
        "--tensorboard",
        action=BooleanOptionalAction,
        default=True,
        help="log for TensorBoard",
    )
    option(
        run,
        "--progress",
        action=BooleanOptionalAction,
        shown="in a terminal",
        help="show a bar",
    )
    data = parser.add_argument_group("corpus (one of the first three)")
    option(
        data,
        "--tatoeba",
        metavar="LANG",
        choices=("deu", "fra", "spa"),
        help="English sentences of Tatoeba and their translations: deu, fra or spa",
    )
    option(data, "--tsv", metavar="FILE", help="a pair a line: source, tab, target")
    option(
        data, "--moses", nargs=2, metavar=("SRC", "TGT"), help="two files, line by line"
    )
    option(
        data,
        "--max-words",
        type=int,
        metavar="INT",
        help="longest Tatoeba sentence, in words",
    )
    option(
        data,
        "--valid-share",
        type=float,
        metavar="FLOAT",
        default=0.05,
        help="for validation",
    )
    option(
        data,
        "--test-share",
        type=float,
        metavar="FLOAT",
        default=0.05,
        help="for the test",
    )
    option(
        data,
        "--tokenizer",
        choices=tuple(TOKENIZERS),
        default="subword",
        help="whole words, or byte pairs",
    )
    option(
        data, "--vocab-size", type=int, metavar="INT", default=8000, help="of each side"
    )
    option(
        data,
        "--max-tokens",
        type=int,
        metavar="INT",
        default=4096,
        help="cells of a batch in each process, padding counted",
    )
    option(
        data,
        "--batch-size",
        type=int,
        metavar="INT",
        help="sentences of a batch, instead",
    )
    model = parser.add_argument_group("model")
    option(
        model,
        "--preset",
        choices=tuple(PRESETS),
        default="base",
        help="sizes to start from",
    )
    parser.fields(model, TransformerConfig, skip=DERIVED, shown="the preset's")
    training = parser.add_argument_group(
        "training (--steps, --epochs or --seconds is needed)"
    )
    parser.fields(training, TrainingConfig)
    quality = parser.add_argument_group("translation quality")
    option(
        quality,
        "--bleu-sentences",
        type=int,
        metavar="INT",
        default=500,
        help="validation sentences to translate at each evaluation; 0 for none",
    )
    option(
        quality,
        "--beam-size",
        type=int,
        metavar="INT",
        default=4,
        help="for the test's BLEU",
    )
    return parser


def read_options(argv: Sequence[str] | None, description: str) -> dict[str, Any]:
    """Settings from the command line, the file, the resumed run and the defaults.

    Raises:
        ValueError: If they contradict the run in ``--out``, or one is out of its range.
        OSError: If a file cannot be read.
    """
    parser = build_parser(description)
    given = parser.given(argv)
    filed = parser.given_in(given["config"]) if "config" in given else {}
    options = layered((), parser.defaults, filed, given)
    if options["out"] is None:
        parser.error("--out must say where to keep the run")
    kept = Path(options["out"]) / "config.json"
    stored = {}
    if kept.exists():
        if not options["resume"]:
            raise ValueError(
                f"{kept.parent} holds a run: add --resume, or choose another --out"
            )
        stored = {
            k: tuple(v) if isinstance(v, list) else v
            for k, v in read_settings(kept).items()
        }
    options = layered((CORPORA, BATCHES), parser.defaults, stored, filed, given)
    if stored:
        decisive = {k: v for k, v in options.items() if k not in FREE}
        check_config(kept, {k: stored.get(k) for k in decisive}, decisive)
    check(parser, options)
    return options


def check(parser: Parser, options: dict[str, Any]) -> None:
    """Refuse what no run could be made of, before there is a file of it.

    Raises:
        ValueError: If a setting of model, training or tokenizer is out of its range.
    """
    if sum(options[name] is not None for name in CORPORA) != 1:
        parser.error("one corpus must be given: --tatoeba, --tsv or --moses")
    if options["max_words"] is not None and options["tatoeba"] is None:
        parser.error("--max-words goes with --tatoeba: it is not applied to files")
    parser.at_least(
        options, max_words=1, batch_size=1, max_tokens=1, bleu_sentences=0, beam_size=1
    )
    shares = options["valid_share"], options["test_share"]
    if not (min(shares) >= 0 and sum(shares) < 1):
        parser.error(
            "--valid-share and --test-share must be at least 0 and sum to less than 1, "
            f"got {shares[0]} and {shares[1]}"
        )
    if options["tie_embeddings"] == "all":
        parser.error(
            "--tie-embeddings must be other than all: source and target each get a vocabulary of "
            "their own, and all needs one for both sides"
        )
    settings = training_config(options)
    if settings.optimizer == "adam" and settings.weight_decay:
        parser.error("--weight-decay must be 0 with --optimizer adam: use adamw")
    if settings.precision == "float16" and options["sharding"] == "fsdp":
        parser.error(
            "--precision must not be float16 with --sharding fsdp: use bfloat16"
        )
    # Both know best what they refuse: trained on nothing, and with vocabularies as large as can be.
    TOKENIZERS[options["tokenizer"]].train([], options["vocab_size"])
    model_config(options, options["vocab_size"], options["vocab_size"])


def training_config(options: dict[str, Any]) -> TrainingConfig:
    """How to train."""
    return TrainingConfig(
        **{field.name: options[field.name] for field in fields(TrainingConfig)}
    )


def model_config(
    options: dict[str, Any], src_vocab_size: int, tgt_vocab_size: int, **ids: int
) -> TransformerConfig:
    """The preset with what was chosen instead; ``ids`` are those of the special tokens."""
    names = {field.name for field in fields(TransformerConfig)} - DERIVED
    chosen = {name: options[name] for name in names if options[name] is not None}
    return PRESETS[options["preset"]](src_vocab_size, tgt_vocab_size, **ids, **chosen)
