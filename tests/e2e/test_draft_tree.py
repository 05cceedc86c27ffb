"""The picture of a draft tree: there for trees, absent for chains, one node a draft token."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.actions import run
from tests.e2e.conftest import OpenPage

pytestmark = [pytest.mark.e2e, pytest.mark.alone]


def test_a_tree_is_drawn_with_the_accepted_path_thick(open_page: OpenPage) -> None:
    page = open_page()
    page.locator(".db-drafters label", has_text="Lookahead").click()
    run(page, "the quick brown fox", 60)
    tree = page.locator(".db-tree")
    expect(tree).to_be_visible()
    nodes = tree.locator(".tree-node")
    # γ = 4 in a chain, and one stranger beside it.
    assert nodes.count() == 5
    script = "all => all.map(one => [one.getAttribute('class'), parseFloat(getComputedStyle(one).strokeWidth)])"
    widths = tree.locator(".edges path").evaluate_all(script)
    kept = [width for fate, width in widths if fate == "A"]
    assert all(width > 3 for width in kept)
    assert all(width < 2 for fate, width in widths if fate != "A")
    assert "nodes, depth 4" in tree.locator(".db-tree-caption").inner_text()


def test_pointing_at_a_step_shows_its_tree_and_a_node_explains_itself(open_page: OpenPage) -> None:
    page = open_page()
    page.locator(".db-drafters label", has_text="Lookahead").click()
    run(page, "the quick brown fox", 60)
    page.locator('.db-steps-body .db-step[data-step="2"]').hover()
    caption = page.locator(".db-tree-caption")
    expect(caption).to_contain_text("step 2:")
    page.locator(".tree-node").last.hover()
    expect(page.locator(".db-popover")).to_contain_text("untested")


def test_a_chain_has_no_picture(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox", 60)
    expect(page.locator(".db-tree")).to_be_hidden()
