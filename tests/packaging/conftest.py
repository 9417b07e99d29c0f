from __future__ import annotations

import shutil

import pytest

from tests.packaging.build import Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if shutil.which("git") is None:
        pytest.skip("git is not installed: it lists the sources")
    return build(tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist"))
