"""Visit pages of Airflow in Chromium and take their pictures; called by screenshots.py in the browser's environment.

Usage: screenshots_browser.py CHROMIUM BASE_URL FOLDER DAG_ID RUN_ID FORM GRAPH ASSETS, the last three being the names
of the pictures. Rule: a picture is taken when the page shows what it is for, never after a fixed time alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, expect, sync_playwright

_ASSET = "paid-orders"
_VALUES = {"Service URL": "pulsar://localhost:6650", "Admin URL": "http://localhost:8080"}
# A page may take long on a busy machine.
_MILLISECONDS = 60_000


def main() -> None:
    """Take the three pictures."""
    chromium, base_url, folder, dag_id, run_id, form, graph, assets = sys.argv[1:]
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.set_default_timeout(_MILLISECONDS)
        expect.set_options(timeout=_MILLISECONDS)
        picture(page, Path(folder) / f"{form}.png", lambda: show_form(page, base_url))
        picture(page, Path(folder) / f"{graph}.png", lambda: show_graph(page, base_url, dag_id, run_id))
        picture(page, Path(folder) / f"{assets}.png", lambda: show_asset(page, base_url))
        browser.close()


def picture(page: Page, path: Path, show: Callable[[], None]) -> None:
    """Show a page, let what moves come to rest, and write its picture."""
    show()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path, animations="disabled")


def show_form(page: Page, base_url: str) -> None:
    """Open the form for a new connection of the type, with its first section."""
    page.set_viewport_size({"width": 1000, "height": 760})
    page.goto(f"{base_url}/connections")
    page.get_by_role("button", name="Add Connection").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox").first.click()
    page.keyboard.type("Apache Pulsar")
    page.keyboard.press("Enter")
    section = dialog.get_by_role("button", name="Pulsar", exact=True)
    expect(section).to_be_visible()
    dialog.locator("input[name=connection_id]").fill("pulsar_default")
    if section.get_attribute("aria-expanded") == "false":
        section.click()
    for label, value in _VALUES.items():
        field = dialog.locator("[data-scope=field]").filter(has=page.get_by_text(label, exact=True))
        field.locator("input").first.fill(value)


def show_graph(page: Page, base_url: str, dag_id: str, run_id: str) -> None:
    """Open the graph of a run, the asset that began it in the graph."""
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(f"{base_url}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}")
    settings = {"default_dag_view": "graph", f"dependencies-{dag_id}": "all"}
    page.evaluate(
        "all => { for (const name in all) localStorage.setItem(name, JSON.stringify(all[name])); }",
        settings,
    )
    page.reload()
    expect(page.locator(".react-flow__node").filter(has_text="collect").first).to_be_visible()


def show_asset(page: Page, base_url: str) -> None:
    """Open the asset, whose events name the message."""
    page.goto(f"{base_url}/assets")
    page.get_by_role("link", name=_ASSET, exact=True).first.click()
    expect(page.locator(".react-flow__node").first).to_be_visible()


if __name__ == "__main__":
    main()
