"""Cached kernels are only loaded if no other user could have written them, and damaged ones are rebuilt."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attack import Outcome, attack_function

from tercet.kernel.build import choose_kernels, kernels, library
from tercet.nn.linear import Linear

OTHER_USER = 65534  # id of another user
PLAIN = 3  # exit code for the fallback to PyTorch

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture(scope="module", autouse=True)
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provide a fast fake compiler that copies the library that the real one built on this machine."""
    if library() is None:
        pytest.skip("kernels are not available on this machine")
    script = tmp_path_factory.mktemp("compiler") / "c++"
    script.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "{kernels()._name}" "$last"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(script))
        yield


def load(cache: Path, umask: int = 0o022) -> Outcome:
    """Return the outcome of a new process that loads the kernels."""

    def load_library() -> int:
        os.umask(umask)
        os.environ["TERCET_CACHE"] = str(cache)
        choose_kernels.cache_clear()
        return 0 if library() is not None else PLAIN

    return attack_function(load_library)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache that contains kernels."""
    assert load(tmp_path / "cache").code == 0
    return tmp_path / "cache"


def kernel_file(cache: Path) -> Path:
    [path] = (cache / "kernels").glob("*.so")
    return path


def is_rejected(outcome: Outcome, why: str) -> bool:
    [line] = outcome.stderr.splitlines()
    return outcome.code == PLAIN and line.startswith("tercet: no compiled kernels, using PyTorch: ") and why in line


@pytest.mark.slow
def test_own_kernels_are_loaded_and_private(cache: Path) -> None:
    before = kernel_file(cache).stat()
    outcome = load(cache)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert kernel_file(cache).stat().st_mtime_ns == before.st_mtime_ns  # it was not compiled again
    assert before.st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_kernels_are_private_for_any_umask(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    assert load(tmp_path / "cache", umask=0).code == 0
    assert load(tmp_path / "cache").code == 0
    assert (tmp_path / "cache" / "kernels").stat().st_mode & 0o077 == 0
    assert kernel_file(tmp_path / "cache").stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "cut to a page", "last byte", "a byte in the middle", "other bytes"])
def test_damaged_kernels_are_compiled_again(cache: Path, damage: str) -> None:
    path = kernel_file(cache)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "cut to a page": whole[:4096],
            "last byte": whole[:-1],
            "a byte in the middle": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "other bytes": b"#!/bin/sh\n" * 99,
        }[damage]
    )
    outcome = load(cache)
    assert outcome.code == 0
    assert outcome.stderr.splitlines() == [f"tercet: {path} is damaged; compiling the kernels again"]
    second = load(cache)
    assert (second.code, second.stderr) == (0, "")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("place", ["the library", "its folder", "the cache", "a folder above"])
def test_kernels_of_another_user_are_not_loaded(cache: Path, place: str) -> None:
    path = kernel_file(cache)
    foreign = {
        "the library": path, "its folder": path.parent, "the cache": cache, "a folder above": cache.parent
    }[place]  # fmt: skip
    os.chown(foreign, OTHER_USER, OTHER_USER)
    try:
        assert is_rejected(load(cache), f"{foreign} belongs to another user; ")
    finally:
        os.chown(foreign, os.geteuid(), os.getegid())


@pytest.mark.slow
@pytest.mark.parametrize(("place", "mode"), [("the library", 0o757), ("its folder", 0o777), ("the cache", 0o757)])
def test_kernels_that_others_can_write_are_not_loaded(cache: Path, place: str, mode: int) -> None:
    path = kernel_file(cache)
    writable = {"the library": path, "its folder": path.parent, "the cache": cache}[place]
    writable.chmod(mode)
    assert is_rejected(load(cache), f"other users can write to {writable}; `chmod go-w` it")
    writable.chmod(0o700)
    assert load(cache).code == 0


@pytest.mark.slow
@needs_root
def test_kernels_that_a_shared_group_can_write_are_not_loaded(cache: Path) -> None:
    cache.chmod(0o770)
    assert load(cache).code == 0  # the group of root
    os.chown(cache, -1, OTHER_USER)
    assert is_rejected(load(cache), f"other users can write to {cache}")


@pytest.mark.slow
def test_a_link_instead_of_the_library_is_not_followed(cache: Path, tmp_path: Path) -> None:
    path = kernel_file(cache)
    elsewhere = path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(elsewhere)
    assert is_rejected(load(cache), f"{path} is a symbolic link; remove it")
    path.unlink()
    path.symlink_to("nowhere")
    assert is_rejected(load(cache), f"{path} is a symbolic link; remove it")


@pytest.mark.slow
@needs_root
def test_a_cache_may_link_to_a_folder_of_the_same_user(cache: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache)
    assert load(link).code == 0
    os.chown(cache, OTHER_USER, OTHER_USER)
    assert is_rejected(load(link), f"{cache} belongs to another user")


@pytest.mark.slow
def test_kernels_below_a_sticky_folder_are_loaded(cache: Path) -> None:
    """In a folder such as /tmp only the owner may remove files, so they cannot be replaced."""
    cache.chmod(0o1777)
    assert load(cache).code == 0
    kernel_file(cache).parent.chmod(0o1777)  # but no other user may write to the folder of the library
    assert is_rejected(load(cache), "other users can write")


@pytest.mark.slow
def test_kernels_are_not_compiled_into_a_folder_that_others_can_write(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    assert is_rejected(load(cache), f"other users can write to {cache}")
    assert list((cache / "kernels").glob("*")) == []


@pytest.mark.slow
@needs_root
def test_pytorch_is_used_if_the_library_is_rejected(cache: Path) -> None:
    os.chown(kernel_file(cache), OTHER_USER, OTHER_USER)

    def multiply() -> int:
        os.environ["TERCET_CACHE"] = str(cache)
        choose_kernels.cache_clear()
        layer, x = Linear(256, 256).requires_grad_(False), torch.randn(1, 256)
        right = torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-4)
        return 0 if right and library() is None else 1

    outcome = attack_function(multiply)
    assert outcome.code == 0
    assert outcome.stderr.count("\n") == 1


def test_checking_the_owner_is_fast(cache: Path) -> None:
    """Checking the owner takes less than 10 ms at each start; about 0.3 ms were measured."""
    from tercet.cache_dir import check_owner
    from tercet.kernel.library_cache import _is_whole  # pyright: ignore[reportPrivateUsage]

    path = kernel_file(cache)

    def measure() -> float:
        start = time.perf_counter()
        check_owner(path.parent)
        check_owner(path)
        assert _is_whole(path)
        return time.perf_counter() - start

    assert min(measure() for _ in range(5)) < 0.010
