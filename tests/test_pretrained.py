"""`src.applications.minilm` against the `transformers` library: live, stored, and on a tiny random BERT."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from src.applications.minilm import (
    UNUSED,
    bert_config,
    copy_bert_weights,
    load_minilm,
    read,
    reference,
    sentence_embedding,
)
from src.assets import ASSETS, fetch
from src.transformer import Encoder

ROOT = Path(__file__).resolve().parent.parent
TINY = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "vocab_size": 23,
    "hidden_size": 15,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 19,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def tool():
    """The script that made the stored values, as a module."""
    path = ROOT / "tools" / "minilm_reference.py"
    spec = importlib.util.spec_from_file_location("minilm_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minilm():
    return load_minilm()


@pytest.fixture
def tiny_tensors():
    """A random BERT of the library in float64, every bias and norm moved off its start."""
    transformers = pytest.importorskip("transformers")
    model = (
        transformers.BertModel(transformers.BertConfig(**TINY, attn_implementation="eager"))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model, dict(model.state_dict())


def tiny_encoder():
    # bos_id and eos_id belong to the target side, which a BERT lacks.
    return Encoder(bert_config(TINY)).double().eval()


def test_minilm_has_the_shape_its_card_says(minilm):
    encoder, tokenizer = minilm
    assert len(encoder.layers) == 6
    attention = encoder.layers[0].self_attention
    assert (attention.d_model, attention.num_heads, attention.head_dim) == (384, 12, 32)
    assert encoder.layers[5].add_norms[1].norm.eps == 1e-12
    # the card's 22.7 million are with the pooler's 147,840
    assert sum(p.numel() for p in encoder.parameters()) == 22_713_216 - 147_840
    assert not encoder.training
    assert tokenizer.token_to_id("[PAD]") == 0


def test_embeddings_equal_the_stored_reference(minilm):
    stored = reference()
    ours = sentence_embedding(*minilm, stored["sentences"])
    torch.testing.assert_close(ours, torch.tensor(stored["embeddings"]), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.norm(dim=-1), torch.ones(len(ours)))


def test_states_weights_and_tokens_equal_the_stored_reference(minilm):
    stored = reference()
    reading = read(*minilm, stored["sentences"])
    assert reading.tokens == stored["tokens"]
    row, length = stored["inspected"], len(stored["tokens"][stored["inspected"]])
    states = torch.tensor(stored["states"])
    ours = torch.stack(reading.states)[:, row, :length, : states.shape[-1]]
    torch.testing.assert_close(ours, states, atol=2e-5, rtol=0)
    weights = torch.stack(reading.weights)[:, row, :, :length, :length]
    torch.testing.assert_close(weights, torch.tensor(stored["weights"]), atol=2e-5, rtol=0)


def test_stored_reference_is_what_its_script_computes():
    pytest.importorskip("transformers")
    stored, fresh = reference(), json.loads(json.dumps(tool().compute()))
    assert stored["weights_sha256"] == ASSETS["minilm-weights"].sha256
    assert stored["sentences"] == fresh["sentences"]
    assert stored["tokens"] == fresh["tokens"]
    for name in ("embeddings", "states", "weights"):
        torch.testing.assert_close(
            torch.tensor(stored[name]), torch.tensor(fresh[name]), atol=1e-5, rtol=0
        )


def test_every_layer_equals_the_library_live(minilm):
    pytest.importorskip("transformers")
    sentences = ["A vote.", "Watson's kernel weighs far points less than near ones.", "Why?"]
    model, tokenizer = tool().load()
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**batch, output_hidden_states=True, output_attentions=True)
    reading = read(*minilm, sentences)
    assert torch.equal(reading.ids, batch["input_ids"])
    assert torch.equal(reading.mask[:, 0], batch["attention_mask"].bool())
    for ours, other in zip(reading.states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(
            ours[reading.mask[:, 0]], other[reading.mask[:, 0]], atol=2e-5, rtol=0
        )
    for ours, other in zip(reading.weights, theirs.attentions, strict=True):
        torch.testing.assert_close(ours, other, atol=2e-5, rtol=0)
        assert not ours.masked_select(~reading.mask.unsqueeze(1)).any()


def test_tiny_random_bert_equals_the_library_to_rounding(tiny_tensors):
    model, tensors = tiny_tensors
    encoder = tiny_encoder()
    copy_bert_weights(encoder, tensors)
    ids = torch.randint(0, 23, (3, 7))
    keep = torch.arange(7) < torch.tensor([7, 2, 5])[:, None]
    with torch.no_grad():
        theirs = model(ids, keep.long()).last_hidden_state
        output = encoder(ids, keep.unsqueeze(1))
    torch.testing.assert_close(output[keep], theirs[keep], atol=1e-12, rtol=0)


def test_every_parameter_is_written(tiny_tensors):
    encoder = tiny_encoder()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(float("nan"))
    copy_bert_weights(encoder, tiny_tensors[1])
    assert all(parameter.isfinite().all() for parameter in encoder.parameters())


def test_embedding_is_the_mean_over_real_tokens_of_length_1():
    """The definition, one text at a time, on a small random encoder."""
    words = {f"w{i}": i for i in range(TINY["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(pad_id=0, pad_token="w0")
    encoder, texts = tiny_encoder(), ["w5 w3", "w2 w7 w11 w13 w4", "w9"]
    found = sentence_embedding(encoder, tokenizer, texts)
    for embedding, text in zip(found, texts, strict=True):
        ids = torch.tensor([[words[word] for word in text.split()]])
        mean = encoder(ids)[0].mean(dim=0)
        torch.testing.assert_close(embedding, mean / mean.norm(), atol=1e-12, rtol=0)


def test_unused_tensors_are_named_and_everything_else_is_used(minilm):
    from safetensors import safe_open

    with safe_open(fetch("minilm-weights"), "pt") as stored:
        names = set(stored.keys())
        used = sum(torch.Size(stored.get_slice(n).get_shape()).numel() for n in names - set(UNUSED))
    assert set(UNUSED) <= names
    assert used == sum(p.numel() for p in minilm[0].parameters())


def test_missing_left_over_and_misshapen_tensors_are_refused(tiny_tensors):
    tensors, encoder = tiny_tensors[1], tiny_encoder()
    before = copy.deepcopy(encoder.state_dict())
    name = "encoder.layer.1.attention.self.key.weight"
    less = {n: t for n, t in tensors.items() if n != name}
    with pytest.raises(ValueError, match=rf"must hold '{name}'; 1 are missing"):
        copy_bert_weights(encoder, less)
    with pytest.raises(ValueError, match=r"must not hold 'cls\.bias'; 1 have no place"):
        copy_bert_weights(encoder, tensors | {"cls.bias": torch.zeros(3)})
    rule = rf"'{name}'\] must have shape \(15, 15\), but has \(15, 14\)"
    with pytest.raises(ValueError, match=rule):
        copy_bert_weights(encoder, tensors | {name: tensors[name][:, :14]})
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "gpt2"),
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
    ],
)
def test_another_kind_of_model_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"fields\['{name}'\] must be .*, but is '{value}'"):
        bert_config(TINY | {name: value})


def test_a_batch_gives_what_each_sentence_gives_alone(minilm):
    sentences = ["One.", "Padding must not count in the mean, nor in the attention.", "Two words"]
    together = sentence_embedding(*minilm, sentences)
    alone = torch.cat([sentence_embedding(*minilm, [s]) for s in sentences])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_embedding_is_the_normalised_mean_of_the_last_state(minilm):
    reading = read(*minilm, ["Two", "sentences of unequal length"])
    means = [
        state[: len(t)].mean(dim=0)
        for state, t in zip(reading.states[-1], reading.tokens, strict=False)
    ]
    expected = F.normalize(torch.stack(means), dim=-1)
    ours = sentence_embedding(*minilm, ["Two", "sentences of unequal length"])
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_a_text_that_spells_padding_is_not_padding(minilm):
    reading = read(*minilm, ["a [PAD] b", "one two three four five"])
    assert reading.tokens[0] == ["[CLS]", "a", "[PAD]", "b", "[SEP]"]
    assert reading.mask[0, 0].tolist() == [True] * 5 + [False] * 2


def test_a_string_nothing_and_too_much_are_refused(minilm):
    for function in (read, sentence_embedding):
        with pytest.raises(TypeError, match="sentences must be a sequence of texts"):
            function(*minilm, "Hello")
        with pytest.raises(ValueError, match="sentences must hold at least one text"):
            function(*minilm, [])
    with pytest.raises(ValueError, match="max_len is 512"):
        sentence_embedding(*minilm, ["word " * 511])
    assert sentence_embedding(*minilm, ["word " * 510]).shape == (1, 384)
