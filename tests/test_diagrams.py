"""The drawings hold what their captions say."""

from matplotlib import pyplot as plt

from src.figures.diagrams import transformer_diagram


def test_the_diagram_names_every_part_of_the_transformer():
    figure = transformer_diagram()
    words = [text.get_text() for text in figure.axes[0].texts]
    plt.close(figure)
    assert words.count("Add & Norm") == 5
    assert words.count("feed-forward") == 2
    for part in ("self-attention", "masked self-attention", "cross-attention", "output matrix"):
        assert words.count(part) == 1
