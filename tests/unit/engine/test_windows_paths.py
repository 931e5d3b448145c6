"""Windows paths as text: what is absolute, what no file can have, what is the same place."""

from __future__ import annotations

import pytest

from engine.windows_paths import CMD_PATH_CHARS, LauncherError, cmd_path, device, relative, windows_path

LONG = "C:\\" + "\\".join(["folder-of-19-letters"] * 20)


def reason(error: pytest.ExceptionInfo[LauncherError]) -> tuple[str, str]:
    return error.value.reason, str(error.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("C:\\a\\b.py", "C:\\a\\b.py"),
        ("c:/a/../b.py", "c:\\b.py"),
        ("\\\\server\\share\\b.py", "\\\\server\\share\\b.py"),
        ("//server/share/한글/b.py", "\\\\server\\share\\한글\\b.py"),
        ("\\\\?\\C:\\a\\b.py", "\\\\?\\C:\\a\\b.py"),
        ("C:\\100% (x86) & ^ !\\\ud800\U0001f600.py", "C:\\100% (x86) & ^ !\\\ud800\U0001f600.py"),
    ],
)
def test_absolute_path_is_told_in_one_spelling(given: str, found: str) -> None:
    assert windows_path("script", given) == found


@pytest.mark.parametrize(
    "path", ["", "a.py", "a\\b.py", "C:a.py", "\\a.py", "/usr/bin/python", "1:\\a.py", "\\\\server"]
)
def test_path_that_depends_on_where_one_stands_is_refused(path: str) -> None:
    with pytest.raises(LauncherError) as error:
        windows_path("script", path)
    assert reason(error) == (
        "relative-path",
        f"script: {path!r} is not an absolute Windows path; give it from its drive on",
    )


@pytest.mark.parametrize("char", list('\0\r\n\t\x1b"<>|?*:'))
@pytest.mark.parametrize("where", ["C:\\a{}b\\c.py", "\\\\server\\sh{}are\\c.py", "\\\\?\\C:\\a{}b.py"])
def test_character_that_no_name_can_have_is_refused_by_name(char: str, where: str) -> None:
    with pytest.raises(LauncherError) as error:
        windows_path("cwd", where.format(char))
    code, text = reason(error)
    assert code == "bad-path"
    assert f"has the character {char!r} (U+{ord(char):04X}), which no Windows path can have" in text


@pytest.mark.parametrize("path", ["\\\\.\\C:\\a.py", "\\\\?\\Volume{b75e2c83-0000}\\a.py", "\\\\?\\a.py"])
def test_device_is_refused(path: str) -> None:
    with pytest.raises(LauncherError) as error:
        windows_path("script", path)
    assert reason(error) == ("bad-path", f"script: {path!r} names a device; give a path that begins with a drive")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("\\\\?\\C:\\a\\b.py", "C:\\a\\b.py"),
        ("//?/C:/a/b.py", "C:\\a\\b.py"),
        ("\\\\?\\UNC\\server\\share\\b.py", "\\\\server\\share\\b.py"),
        ("\\\\?\\" + LONG[:CMD_PATH_CHARS], LONG[:CMD_PATH_CHARS]),
    ],
)
def test_cmd_gets_the_path_without_the_prefix_that_it_cannot_use(given: str, found: str) -> None:
    assert cmd_path("bat", given) == found


def test_path_that_is_too_long_without_the_prefix_is_refused() -> None:
    with pytest.raises(LauncherError) as error:
        cmd_path("bat", "\\\\?\\" + LONG[: CMD_PATH_CHARS + 1])
    code, text = reason(error)
    assert code == "bad-path"
    assert text.endswith("has 260 characters, and cmd can use 259; give a shorter path")


@pytest.mark.parametrize(
    ("path", "folder", "found"),
    [
        ("C:\\한글\\py\\python.exe", "C:\\한글\\tools", "..\\py\\python.exe"),
        ("C:\\한글\\python.exe", "C:\\한글", "python.exe"),
        ("c:\\A\\b.exe", "C:\\a", "b.exe"),
        ("C:\\a\\b.exe", "C:\\", "a\\b.exe"),
        ("C:\\b.exe", "C:\\x\\y", "..\\..\\b.exe"),
        ("C:\\a", "C:\\a", "..\\a"),
        ("\\\\S\\share\\a\\b.exe", "\\\\s\\SHARE\\c", "..\\a\\b.exe"),
        ("C:\\É\\b.exe", "C:\\é", "..\\É\\b.exe"),  # perhaps the same for Windows, and right either way
        ("D:\\a\\b.exe", "C:\\a", None),
        ("\\\\s\\other\\b.exe", "\\\\s\\share", None),
    ],
)
def test_place_relative_to_a_folder(path: str, folder: str, found: str | None) -> None:
    assert relative(path, folder) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("con.bat", "CON"), ("NUL", "NUL"), ("aux .tar.gz", "AUX"), ("com1.py", "COM1"), ("LPT³.bat", "LPT³"),
        ("conout$.bat", "CONOUT$"), ("prn:x", "PRN"),
        ("console.bat", ""), ("com0.bat", ""), ("com10.bat", ""), ("a con.bat", ""), ("", ""), (".bat", ""),
    ],
)  # fmt: skip
def test_name_of_a_device(name: str, found: str) -> None:
    assert device(name) == found
