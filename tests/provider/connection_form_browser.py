"""Drive the connection form in Chromium: read it, fill it in, save, and press Test. Runs in the browser's environment.

Usage: connection_form_browser.py CHROMIUM BASE_URL FOLDER JSON, where JSON has conn_id, hook_name and values by section
and label. Prints one line of JSON per step and waits for a line on standard input before the next. Rule: what is told
was read from the page, as a person sees it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect, sync_playwright

# Sections fold: what a folded one holds is in the page all the same.
_READ = """dialog => [...dialog.querySelectorAll("label")].map(label => {
  const section = label.closest("[data-scope=accordion][data-part=item]");
  const field = label.closest("[data-part=root]:not([data-scope=accordion])") ?? label.parentElement;
  const input = field.querySelector("input:not([type=hidden]), textarea");
  return {
    section: section ? section.querySelector("[data-part=item-trigger]").innerText.trim() : "",
    label: label.innerText.replace(/[*\\s]+$/, "").trim(),
    type: input ? input.type : null,
  };
}).filter(each => each.label)"""


def main() -> None:
    """Do the steps."""
    chromium, base_url, folder, text = sys.argv[1:]
    asked: dict[str, Any] = json.loads(text)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.set_default_timeout(30_000)
        dialog = open_form(page, base_url, asked["hook_name"])
        told = {"fields": dialog.evaluate(_READ), "choices": choices(page, dialog)}
        for section in asked["values"]:
            unfold(dialog, section)
            page.screenshot(path=Path(folder) / f"connection-form-{section.lower().replace(' ', '-')}.png")
        step(told)
        save(page, dialog, asked)
        step({"saved": True})
        row = page.get_by_role("row").filter(has=page.get_by_text(asked["conn_id"], exact=True))
        with page.expect_response(lambda answer: answer.url.endswith("/connections/test")) as response:
            row.get_by_role("button", name="Test Connection").click()
        page.wait_for_timeout(1000)
        page.screenshot(path=Path(folder) / "connection-test.png")
        step({"tested": response.value.json()})
        browser.close()


def step(told: object) -> None:
    """Tell what was found and wait to be told to go on."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


def open_form(page: Page, base_url: str, hook_name: str) -> Locator:
    """Open the form for a new connection of the type."""
    page.goto(f"{base_url}/connections")
    page.get_by_role("button", name="Add Connection").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox").first.click()
    page.keyboard.type(hook_name)
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Pulsar", exact=True)).to_be_visible()
    return dialog


def unfold(dialog: Locator, section: str) -> Locator:
    """Show a section and return it."""
    button = dialog.get_by_role("button", name=section, exact=True)
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    item = dialog.locator("[data-scope=accordion][data-part=item]").filter(
        has=dialog.page.get_by_role("button", name=section, exact=True)
    )
    expect(item.locator("label").first).to_be_visible()
    return item


def choices(page: Page, dialog: Locator) -> list[str]:
    """Return what the drop-down of the authentication method offers, and choose none."""
    unfold(dialog, "Authentication").get_by_role("combobox").click()
    options = page.get_by_role("option")
    expect(options.first).to_be_visible()
    found = options.all_inner_texts()
    page.get_by_role("option", name="none", exact=True).click()
    return found


def save(page: Page, dialog: Locator, asked: dict[str, Any]) -> None:
    """Fill in what is asked, save, and wait for the list that shows it."""
    dialog.locator("input[name=connection_id]").fill(asked["conn_id"])
    for section, values in asked["values"].items():
        item = unfold(dialog, section)
        for label, value in values.items():
            wanted = item.locator("[data-scope=field]").filter(has=page.get_by_text(label, exact=True))
            wanted.locator("input, textarea").first.fill(value)
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text(asked["conn_id"], exact=True)).to_be_visible()


if __name__ == "__main__":
    main()
