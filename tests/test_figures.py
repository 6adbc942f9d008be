"""Plots draw the data that they are given, and refuse what they cannot draw."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from src import figures


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_use_style_sets_white_cards_of_one_width():
    with plt.rc_context():
        figures.use_style()
        figure, _ = plt.subplots()
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.get_figwidth() == figures.WIDTH
    assert figure.dpi == figures.DPI


def test_colours_are_all_different():
    assert len(set(figures.LINE_COLORS)) == len(figures.LINE_COLORS)
    assert len(figures.LINE_COLORS) == len(figures.DASHES) == len(figures.MARKERS)


def test_panels_makes_the_asked_number_of_axes():
    figure, axes = figures.panels(5, columns=3)
    assert len(axes) == 5 and len(figure.axes) == 5


@pytest.mark.parametrize(("count", "columns"), [(0, 3), (2, 0)])
def test_panels_needs_one_at_least(count, columns):
    with pytest.raises(ValueError, match="count and columns must be at least 1"):
        figures.panels(count, columns=columns)


def test_heatmap_draws_every_matrix_on_one_scale():
    weights = torch.rand(3, 5, 7, requires_grad=True).softmax(dim=-1)
    axes = figures.heatmap(weights, titles=["a", "b", "c"])
    drawn = np.stack([axis.images[0].get_array() for axis in axes])
    np.testing.assert_allclose(drawn, weights.detach().numpy(), rtol=1e-6)
    limits = {axis.images[0].get_clim() for axis in axes}
    assert limits == {(0.0, float(drawn.max()))}
    assert [axis.get_title() for axis in axes] == ["a", "b", "c"]


def test_heatmap_writes_labels_and_values():
    (axis,) = figures.heatmap(
        [[0.25, 0.75]], rows=["he"], columns=["il", "lui"], annotate=True, colorbar=False
    )
    assert [t.get_text() for t in axis.get_xticklabels()] == ["il", "lui"]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["he"]
    assert [t.get_text() for t in axis.texts] == ["0.25", "0.75"]
    # White letters on the dark cell, black ones on the light cell.
    assert [t.get_color() for t in axis.texts] == ["black", "white"]


def test_heatmap_of_signed_values_is_white_at_zero():
    (axis,) = figures.heatmap([[-1.0, 3.0]], signed=True)
    assert axis.images[0].get_clim() == (-3.0, 3.0)


@pytest.mark.parametrize("value", [0.0, 0.5, -2.0])
def test_heatmap_of_one_value_has_a_scale(value):
    (axis,) = figures.heatmap([[value, value]])
    low, high = axis.images[0].get_clim()
    assert low <= value <= high and low < high


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        ([1.0, 2.0], {}, r"values must have rank 2 or 3, got shape \(2,\)"),
        (np.empty((0, 3)), {}, "values must be finite and not empty"),
        ([[float("nan")]], {}, "values must be finite and not empty"),
        ([[1.0, 2.0]], {"rows": ["a", "b"]}, "rows must have 1 entries, got 2"),
        ([[1.0, 2.0]], {"columns": ["a"]}, "columns must have 2 entries, got 1"),
        ([[1.0, 2.0]], {"titles": []}, "titles must have 1 entries, got 0"),
    ],
)
def test_heatmap_refuses(values, labels, message):
    with pytest.raises(ValueError, match=message):
        figures.heatmap(values, **labels)


def test_curves_draw_their_values_and_tell_lines_apart_without_colour():
    lines = {"one": torch.tensor([1.0, 2.0, 4.0]), "two": [3, 2, 1]}
    axis = figures.curves(
        [1, 10, 100], lines, xlabel="n", ylabel="ms", logx=True, reference={"n": [1, 10, 100]}
    )
    drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert drawn == {"one": [1, 2, 4], "two": [3, 2, 1], "n": [1, 10, 100]}
    assert axis.get_xscale() == "log" and axis.get_yscale() == "linear"
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("n", "ms")
    assert len({line.get_linestyle() for line in axis.lines[:2]}) == 2
    assert [t.get_text() for t in axis.get_legend().get_texts()] == ["one", "two", "n"]


def test_curves_of_two_panels_share_their_colours():
    order = ["one", "two", "three"]
    styles = [
        {
            line.get_label(): (line.get_color(), line.get_linestyle())
            for line in figures.curves(
                [0, 1], {name: [1, 2] for name in names}, xlabel="x", ylabel="y", order=order
            ).lines
        }
        for names in (["one", "two"], ["one", "three"])
    ]
    assert styles[0]["one"] == styles[1]["one"]
    assert len({styles[0]["one"], styles[0]["two"], styles[1]["three"]}) == 3
    with pytest.raises(ValueError, match=r"order must name every line, but lacks \['four'\]"):
        figures.curves([0], {"four": [1]}, xlabel="x", ylabel="y", order=order)


def test_curves_with_an_x_of_their_own():
    axis = figures.curves(
        {"a": [0, 1], "b": [0, 1, 2]}, {"a": [5, 6], "b": [7, 8, 9]}, xlabel="x", ylabel="y"
    )
    assert [len(line.get_xdata()) for line in axis.lines] == [2, 3]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({}, "lines must be 1 to 7 in number, got 0"),
        ({str(i): [1, 2] for i in range(8)}, "lines must be 1 to 7 in number, got 8"),
        ({"a": [1, 2, 3]}, r"lines\['a'\] must have the shape of its x, \(2,\), got \(3,\)"),
    ],
)
def test_curves_refuse(lines, message):
    with pytest.raises(ValueError, match=message):
        figures.curves([0, 1], lines, xlabel="x", ylabel="y")


class Shown:
    def method(self):
        return 1


def test_show_source_shows_file_and_source():
    text = figures.show_source(figures.panels, Shown.method).data
    assert text.startswith("*src/figures/plots.py*, `panels`\n\n```python\ndef panels(")
    assert (
        "*test_figures.py*, `Shown.method`\n\n```python\ndef method(self):\n    return 1\n```"
        in text
    )


def test_show_source_holds_no_address():
    display = figures.show_source(Shown)
    assert "0x" not in display.data and "0x" not in repr(display)


@pytest.mark.parametrize(("arguments", "message"), [((), "at least one object"), ((3,), "int")])
def test_show_source_refuses(arguments, message):
    with pytest.raises(TypeError, match=message):
        figures.show_source(*arguments)


def test_show_source_cuts_docstrings_after_their_first_line():
    text = figures.show_source(figures.heatmap).data
    assert "Args:" not in text and "Raises:" not in text
    assert text.count('"""') == 2 and "return " in text
