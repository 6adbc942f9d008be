"""Compute the reference values of `src.applications.minilm` with the `transformers` library.

    python tools/minilm_reference.py

writes `src/applications/minilm.json`. The same checked weights are loaded into `BertModel`, an
implementation that shares no line with ours; the tests and chapter 15.2 compare with what is
stored, so readers need not install `transformers`. The file lies inside the package because the
chapter also runs where only the package is installed.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from src.assets import ASSETS, fetch

TARGET = Path(__file__).resolve().parent.parent / "src" / "applications" / "minilm.json"

# Of unequal lengths, so that padding takes part; a rare word of several pieces; a foreign script.
SENTENCES = (
    "She ate an apple after lunch.",
    "I love my Apple phone!",
    "The animal did not cross the street because it was too tired.",
    "Nadaraya and Watson published their estimators in 1964.",
    "Attention",
    "我爱吃苹果",
)
# Sentence whose attention weights and hidden states are stored, too; and columns of the latter.
INSPECTED = 0
COLUMNS = 8
DECIMALS = 7  # float32 gives no more


def main() -> None:
    """Compute and write the file."""
    torch.set_num_threads(1)
    values = compute()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.name}: {len(text):,} characters")


@torch.no_grad()
def compute() -> dict:
    """Return the values that the file holds."""
    model, tokenizer = load()
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    real = batch["attention_mask"].unsqueeze(-1).float()
    result = model(**batch, output_hidden_states=True, output_attentions=True)
    mean = (result.last_hidden_state * real).sum(dim=1) / real.sum(dim=1)
    length = int(batch["attention_mask"][INSPECTED].sum())
    states = torch.stack(result.hidden_states)[:, INSPECTED, :length]
    weights = torch.stack(result.attentions)[:, INSPECTED, :, :length, :length]
    return {
        "made_by": "tools/minilm_reference.py",
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "weights_sha256": ASSETS["minilm-weights"].sha256,
        "sentences": SENTENCES,
        "tokens": [
            tokenizer.convert_ids_to_tokens(row[:n])
            for row, n in zip(
                batch["input_ids"].tolist(), real.sum(dim=(1, 2)).int().tolist(), strict=False
            )
        ],
        # (B, D): mean pooling, then length 1
        "embeddings": rounded(F.normalize(mean, dim=-1)),
        "inspected": INSPECTED,
        # (L + 1, S, COLUMNS): the first columns of each layer's vectors
        "states": rounded(states[..., :COLUMNS]),
        # (L, H, S, S)
        "weights": rounded(weights),
    }


def load() -> tuple[BertModel, PreTrainedTokenizerFast]:
    """Load the checked files into the library's own classes."""
    config = BertConfig.from_json_file(fetch("minilm-config"))
    config._attn_implementation = "eager"  # the only one that returns weights
    model = BertModel(config)
    tensors = load_file(fetch("minilm-weights"))
    del tensors["embeddings.position_ids"]  # a constant buffer today
    model.load_state_dict(tensors, strict=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(fetch("minilm-tokenizer")), pad_token="[PAD]"
    )
    return model.eval(), tokenizer


def rounded(values: torch.Tensor) -> list:
    """Nested lists of numbers with `DECIMALS` decimals."""
    return [rounded(row) if row.dim() else round(row.item(), DECIMALS) for row in values]


if __name__ == "__main__":
    main()
