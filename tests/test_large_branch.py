"""The cells that 10.7 runs where there is a GPU, run here on a CPU with little of everything.

What is tested is that they run: subword vocabularies, the larger model, the maps over pieces of
words. What they reach, their own assertions say, on a GPU.
"""

import ast
import dataclasses
import re

import pytest

from sample import ROOT, notebooks

FIRST, LAST = "device = pick_device()", "def written(sentence):"


class WithoutAssertions(ast.NodeTransformer):
    """Drop what so short a training cannot reach."""

    def visit_Assert(self, node):
        return ast.Pass()


def large_cells() -> str:
    """The code from the data to the live figure, made to take the branch of a GPU."""
    cells = notebooks.read(ROOT / "notebooks" / "ch10_7_transformer.ipynb")
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    imports = next(source for source in sources if "from src.data import" in source)
    start = next(i for i, source in enumerate(sources) if source.startswith(FIRST))
    end = next(i for i, source in enumerate(sources) if LAST in source)
    code = "\n".join([imports, *sources[start : end + 1]])
    for found, put in (
        (r'large = device\.type == "cuda"', "large = True"),
        (r'split_pairs\(load_pairs\("fra"\)\)', 'few(split_pairs(load_pairs("fra")))'),
        (r"steps=1500", "steps=2"),
        (r'"bfloat16" if large else ', ""),  # which few CPUs have instructions for
        (r"beam_size=4", "beam_size=1, max_len=8"),
    ):
        code, count = re.subn(found, put, code)
        assert count, f"the chapter holds no {found}"
    return code


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_branch_of_a_gpu_runs(unchecked):
    def few(splits):
        with_pronoun = [pair for pair in splits.test if " him" in pair.source]
        return dataclasses.replace(
            splits, train=splits.train[:600], valid=splits.valid[:20], test=with_pronoun[:25]
        )

    tree = WithoutAssertions().visit(ast.parse(large_cells()))
    names = {"few": few}
    exec(compile(ast.fix_missing_locations(tree), "ch10_7, large", "exec"), names)
    assert names["large"] and names["records"][-1].step == 2
    assert type(names["source_tok"]).__name__ == "SubwordTokenizer"
    assert names["model"].config.d_model == 256
    assert len(names["hypotheses"]) == 25
    # A pronoun is found though a piece carries the space before its word.
    pronoun = names["source_tok"].tokens(names["source_tok"].encode("I see him"))
    assert any(piece.strip() in names["OBJECTS"] for piece in pronoun)
