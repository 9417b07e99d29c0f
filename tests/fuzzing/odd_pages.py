"""The dashboard's page, in a browser, with odd documents of the types that the API promises, and changes of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from random import Random
from typing import Any, get_type_hints
from urllib.parse import unquote

import msgspec
from msgspec import inspect

from kafka_coord.groups.group import Time
from kafka_coord.monitor.dashboard.live import changes
from kafka_coord.monitor.dashboard.routes import ROUTES
from tests.fuzzing.odd_cluster import OddCluster
from tests.fuzzing.odd_requests import served
from tests.fuzzing.odd_values import NUMBERS, TEXTS

VIEWS = {
    "overview": (),
    "groups": (),
    "cluster": (),
    "group": ("delays",),
    "partition": ("delays", "flights", "0"),
    "consumer": ("delays", "__proto__"),
    "topic": ("flights",),
}
"""Each view, with the names in its address."""
_NAMES = ("__proto__", "constructor", "toString", "delays", "flights", "c1", *TEXTS)
_TIMES = ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00.001Z", "2026-01-31T12:00:00.123Z", "9999-12-31T23:59:59.999Z")
_PATHS = "async ([view, names]) => (await import(new URL('views.js', location.href)))[view](...names).paths"
_DRAW = """async ([view, names, text]) => {
  const [before, after, changes] = JSON.parse(text);
  const at = (name) => import(new URL(name, location.href));
  const [{ show }, { applied }, views] = [await at("dom.js"), await at("live.js"), await at("views.js")];
  const host = document.body.appendChild(document.createElement("div"));
  const { render } = views[view](...names);
  show(host, [render(before)]);
  const known = {};
  for (const [path, one] of Object.entries(before)) {
    known[path] = applied(structuredClone(one), changes[path]);
    if (written(known[path]) !== written(after[path])) throw new Error(`the changes of ${path} give another document`);
  }
  show(host, [render(known)]);
  await new Promise(requestAnimationFrame);
  host.remove();
  function written(value) {
    return JSON.stringify(value, (_, one) => (one === null || Array.isArray(one) || typeof one !== "object" ? one
      : Object.entries(one).sort(([name], [other]) => (name < other ? -1 : 1))));
  }
}"""


def odd_value(form: inspect.Type, chance: Random) -> Any:
    """A value of this type, as JSON would carry it."""
    if isinstance(form, inspect.Metadata):
        return odd_value(form.type, chance)
    if isinstance(form, inspect.CustomType):
        return chance.choice(_TIMES) if form.cls is Time else {chance.choice(_NAMES): chance.choice(TEXTS)}
    if isinstance(form, inspect.UnionType):
        return odd_value(chance.choice(form.types), chance)
    if isinstance(form, inspect.StructType):
        fields = {one.encode_name: odd_value(one.type, chance) for one in form.fields}
        return list(fields.values()) if form.array_like else fields
    if isinstance(form, inspect.ListType | inspect.VarTupleType):
        return [odd_value(form.item_type, chance) for _ in range(chance.choice((0, 1, 1, 3)))]
    if isinstance(form, inspect.TupleType):
        return [odd_value(one, chance) for one in form.item_types]
    if isinstance(form, inspect.DictType):
        return {chance.choice(_NAMES): odd_value(form.value_type, chance) for _ in range(chance.randrange(3))}
    if isinstance(form, inspect.LiteralType):
        return chance.choice(form.values)
    if isinstance(form, inspect.EnumType):
        return chance.choice(list(form.cls)).value
    return _odd_scalar(form, chance)


def _odd_scalar(form: inspect.Type, chance: Random) -> Any:
    if isinstance(form, inspect.StrType):
        return chance.choice(_NAMES)
    if isinstance(form, inspect.IntType | inspect.FloatType):
        least = form.ge if form.ge is not None else -(2**63)
        return max(chance.choice((*NUMBERS, 1_732_060_800_000)), least)
    return {inspect.BoolType: chance.random() < 0.5, inspect.NoneType: None}.get(type(form), "x")


def drawn(cluster: OddCluster, many: int = 10) -> Iterator[tuple[str, str]]:
    """Starts Chromium and draws ``many`` views in it, as :func:`odd_pages` does; none if it is not installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    if chromium is None:
        return
    with served(cluster) as (port, _), sync_playwright() as playwright:
        page: Any = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        ).new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/dashboard/")
        yield from odd_pages(page, cluster.chance, many)


def odd_pages(page: Any, chance: Random, many: int) -> Iterator[tuple[str, str]]:
    """Draws ``many`` views. Yields each, with its fault or ``""``. ``page`` is at the dashboard, and ``page.errors``
    has the errors that it reported."""
    for _ in range(many):
        view, names = chance.choice(list(VIEWS.items()))
        paths = page.evaluate(_PATHS, [view, names])
        forms = {path: form_of(path) for path in paths}
        known = [path for path in paths if chance.random() < 0.9]
        before, after = ({path: odd_value(forms[path], chance) for path in known} for _ in range(2))
        told = {path: changes(before[path], after[path]) for path in known}
        text = msgspec.json.encode([before, after, told]).decode()
        page.errors.clear()
        try:
            page.evaluate(_DRAW, [view, names, text])
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
            page.errors.append(str(error)[:1_000])
        fault = "\n".join(page.errors)
        yield f"page {view}", fault and f"{fault}\n{text[:20_000]}"


def form_of(path: str) -> inspect.Type:
    plain = unquote(path.partition("?")[0])
    (found,) = (one for one in ROUTES if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one.path), plain))
    return inspect.type_info(get_type_hints(found.read, include_extras=True)["return"])
