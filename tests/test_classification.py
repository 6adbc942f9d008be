"""Token classifier, batches without end, the small training loop and its accuracy."""

import pytest
import torch
from torch import nn

from src.applications.classification import (
    IGNORED,
    TokenClassifier,
    accuracy,
    fit,
    look_back_batch,
    minibatches,
)
from src.config import TransformerConfig
from src.recording import recording


def _config(**fields):
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 2, "dropout": 0.0}
    return TransformerConfig(7, 5, **(sizes | fields))


def test_token_classifier_is_encoder_and_head():
    model = TokenClassifier(_config(), 3)
    ids = torch.randint(7, (2, 11))
    with recording(model) as maps:
        logits = model(ids)
    assert logits.shape == (2, 11, 3)
    torch.testing.assert_close(logits, model.head(model.encoder(ids)), atol=1e-6, rtol=0)
    assert [tuple(w.shape) for w in maps.values()] == [(2, 3, 11, 11)] * 2


def test_token_classifier_obeys_its_mask():
    model = TokenClassifier(_config(), 3)
    mask = torch.ones(1, 1, 11, dtype=torch.bool)
    mask[..., 8:] = False
    ids = torch.randint(1, 7, (2, 11))
    changed = ids.clone()
    changed[:, 8:] = 0
    torch.testing.assert_close(
        model(ids, mask)[:, :8], model(changed, mask)[:, :8], atol=1e-6, rtol=0
    )
    assert (model(ids)[:, :8] - model(changed)[:, :8]).abs().max() > 1e-3


def test_minibatches_show_everything_once_a_round():
    inputs = torch.arange(11)
    sample = minibatches(inputs, 2 * inputs, 4, torch.Generator().manual_seed(0))
    rounds = [[sample() for _ in range(3)] for _ in range(2)]
    for batches in rounds:
        assert [len(x) for x, _ in batches] == [4, 4, 3]
        assert sorted(torch.cat([x for x, _ in batches]).tolist()) == list(range(11))
        assert all(torch.equal(y, 2 * x) for x, y in batches)
    first, second = (torch.cat([x for x, _ in batches]) for batches in rounds)
    assert not torch.equal(first, second)


def test_minibatches_depend_on_the_generator_alone():
    def draw(seed):
        torch.rand(seed)  # the global state must not matter
        sample = minibatches(
            torch.arange(23), torch.arange(23), 23, torch.Generator().manual_seed(1)
        )
        return sample()[0]

    assert torch.equal(draw(3), draw(5))


def test_look_back_targets_are_the_earlier_tokens():
    ids, targets = look_back_batch(3, 7, 5, 2, torch.Generator().manual_seed(0))
    assert ids.shape == targets.shape == (3, 7) and ids.min() == 0 and ids.max() == 4
    for row in range(3):
        assert targets[row].tolist() == [IGNORED, IGNORED, *ids[row, :5].tolist()]


@pytest.mark.parametrize("back", [0, 7])
def test_look_back_demands_a_target(back):
    with pytest.raises(ValueError, match=rf"back must lie in 1 … 6 .*, but is {back}"):
        look_back_batch(3, 7, 5, back, torch.Generator())


def test_fit_learns_and_leaves_ignored_targets_alone():
    inputs = torch.randn(64, 5, 2)
    targets = (inputs[..., 0] > 0).long()
    hidden = targets.clone()
    hidden[:, ::2] = IGNORED
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    losses = fit(model, lambda: (inputs, hidden), steps=60, lr=0.1)
    assert len(losses) == 60 and losses[-1] < losses[0] / 2
    assert not model.training
    assert accuracy(model, inputs, targets) > 0.95


def test_fit_stops_at_a_loss_that_is_not_finite():
    model = nn.Linear(2, 2)
    with pytest.raises(FloatingPointError, match="the loss is nan at update 0"):
        fit(model, lambda: (torch.full((3, 2), torch.nan), torch.zeros(3).long()), steps=2, lr=0.1)


def test_accuracy_counts_by_hand_across_batches():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 5.0], [1.0, 0.0]])
    targets = torch.tensor([0, 0, 0, IGNORED, 1])
    assert accuracy(nn.Identity(), logits, targets, batch_size=2) == pytest.approx(2 / 4)


def test_bad_arguments_are_named():
    inputs, targets = torch.zeros(3, 2), torch.zeros(3).long()
    generator = torch.Generator()
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="num_classes must be at least 1, but is 0"):
        TokenClassifier(_config(), 0)
    with pytest.raises(ValueError, match="as many and at least one, but are 3 and 2"):
        minibatches(inputs, targets[:2], 2, generator)
    with pytest.raises(ValueError, match="as many and at least one, but are 0 and 0"):
        minibatches(inputs[:0], targets[:0], 2, generator)
    with pytest.raises(ValueError, match="batch_size must be at least 1, but is 0"):
        minibatches(inputs, targets, 0, generator)
    with pytest.raises(ValueError, match="steps must be at least 1, but is 0"):
        fit(model, lambda: (inputs, targets), steps=0, lr=0.1)
    with pytest.raises(ValueError, match="lr must be above 0, but is 0"):
        fit(model, lambda: (inputs, targets), steps=1, lr=0.0)
    with pytest.raises(ValueError, match="all of them are ignored"):
        accuracy(model, inputs, torch.full((3,), IGNORED))
