"""The text of batch files: the same in every code page, for every way to name Python, and what is refused.

Nothing is started here; `test_batchfile_sidecar.py` runs the second file, `tests/wine` both.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batchfile import Launcher, LauncherError, batch_command, render_launcher

HANGUL = "C:\\Users\\김민수\\AppData\\Local\\도구"
ODD = "한글😀(x86) & ^ !"
SCRIPT = f"D:\\{ODD}\\실행 é.py"
BAT = f"D:\\{ODD}\\start.bat"
PYTHON = "C:\\Python 3\\python.exe"

# every code page that cmd may read a batch file with, but 864, whose 0x25 is not '%'
CODE_PAGES = (
    437, 720, 737, 775, 850, 852, 855, 857, 858, 860, 861, 862, 863, 865, 866, 869, 874, 932, 936, 949, 950,
    1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258, 65001,
)  # fmt: skip

ROUTES: dict[str, dict[str, Any]] = {
    "python-env": {"python_env": "STRATA_PYTHON", "python": f"{HANGUL}\\python.exe"},
    "ascii": {"python": "C:\\100% py & (x86)\\python.exe"},
    "relative": {"python": f"D:\\{ODD}\\py %1\\python.exe"},
    "variable": {
        "python": "C:\\Users\\김민수\\AppData\\Local\\Py%\\python.exe",
        "environ": {"LOCALAPPDATA": "C:\\Users\\김민수\\AppData\\Local"},
    },
    "short": {"python": f"{HANGUL}\\python.exe", "short_path": lambda path: "C:\\Users\\0F2A~1\\PY%THO~1.EXE"},  # pyright: ignore[reportUnknownLambdaType] - a stub
}
PROGRAMS = {
    "python-env": "%STRATA_PYTHON%",
    "ascii": "C:\\100%% py & (x86)\\python.exe",
    "relative": "%~dp0py %%1\\python.exe",
    "variable": "%LOCALAPPDATA%\\Py%%\\python.exe",
    "short": "C:\\Users\\0F2A~1\\PY%%THO~1.EXE",
}
UNSET = (
    "@if not defined STRATA_PYTHON (echo STRATA_PYTHON is not set: it names the Python that starts this program "
    "1>&2& exit /b 9009)\r\n"
)


def render(bat: str = BAT, script: str = SCRIPT, args: Sequence[str] = (), **options: Any) -> Launcher:
    """With nothing of this machine, unless it is given."""
    options.setdefault("python", PYTHON)
    options.setdefault("environ", {})
    return render_launcher(bat, script, args, **options)


def refused(**options: Any) -> tuple[str, str]:
    """The reason and the text."""
    with pytest.raises(LauncherError) as error:
        render(**options)
    return error.value.reason, str(error.value)


# --- the bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_makes_exactly_these_bytes(route: str) -> None:
    made = render(args=["a"], **ROUTES[route])
    assert made.route == route
    assert made.bat.decode("ascii") == (
        "@setlocal EnableExtensions DisableDelayedExpansion\r\n"
        f"{UNSET if route == 'python-env' else ''}"
        f'@"{PROGRAMS[route]}" "%~dp0start.launch.py" %*\r\n'
        "@exit /b %errorlevel%\r\n"
    )


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("page", CODE_PAGES)
def test_batch_file_is_the_same_text_in_every_code_page(page: int, route: str, forward: bool) -> None:
    bat = f"D:\\{ODD}\\{ODD}.bat"
    made = render(bat, args=["é", "\udcff"], cwd=HANGUL, env={"이름": "값"}, forward_args=forward, **ROUTES[route])
    codec = "utf-8" if page == 65001 else f"cp{page}"
    for data in (made.bat, made.sidecar):
        assert data.decode(codec) == data.decode("ascii")
        assert max(data) < 0x80
    assert made.bat.count(b"\n") == made.bat.count(b"\r\n") == made.bat.count(b"\r") > 2
    assert made.sidecar_name.isascii()


def test_code_page_864_would_read_another_text() -> None:
    """Why it is not among them, and that the test above would find such a one."""
    made = render()
    assert made.bat.decode("cp864") != made.bat.decode("ascii")


def test_python_gets_its_options_and_no_arguments_are_passed_on_if_unwanted() -> None:
    made = render(python_args=["-I", "-X", "utf8"], forward_args=False)
    assert made.bat.splitlines()[1] == b'@"C:\\Python 3\\python.exe" -I -X utf8 "%~dp0start.launch.py"'
    assert made.argv == [PYTHON, "-I", "-X", "utf8", f"D:\\{ODD}\\start.launch.py"]


@pytest.mark.parametrize(
    ("bat", "name", "shown"),
    [
        ("C:\\a\\start.bat", "start.launch.py", "start.launch.py"),
        ("C:\\a\\Start Me.CMD", "Start Me.launch.py", "Start Me.launch.py"),
        ("C:\\a\\100%.bat", "100%.launch.py", "100%%.launch.py"),
        ("C:\\a\\시작.bat", "launcher-29d68847.launch.py", "launcher-29d68847.launch.py"),
        ("C:\\a\\\ud800.bat", "launcher-1dc4a528.launch.py", "launcher-1dc4a528.launch.py"),
    ],
)
def test_sidecar_has_an_ascii_name_beside_the_batch_file(bat: str, name: str, shown: str) -> None:
    made = render(bat)
    assert made.sidecar_name == name
    assert f'"%~dp0{shown}"'.encode("ascii") in made.bat
    assert made.argv == [PYTHON, f"C:\\a\\{name}"]


TEXTS = st.text(st.characters(blacklist_characters="\0"), max_size=20)
NAMES = st.text(st.characters(blacklist_characters='"<>|?*:%/\\', min_codepoint=32), min_size=1, max_size=20)


@given(NAMES, NAMES, st.lists(TEXTS, max_size=4), st.dictionaries(NAMES.filter(lambda name: "=" not in name), TEXTS))
def test_whatever_is_given_both_files_are_ascii_and_nothing_is_replaced(
    folder: str, stem: str, args: list[str], env: Mapping[str, str]
) -> None:
    made = render(f"C:\\{folder}\\{stem}.bat", f"C:\\{folder}\\{stem}.py", args, env=env)
    assert max(made.bat + made.sidecar) < 0x80
    texts = [node.value for node in ast.walk(ast.parse(made.sidecar)) if isinstance(node, ast.Constant)]
    assert {*args, *env, *env.values()} <= set(texts)
    assert any(str(text).endswith(f"\\{stem}.py") for text in texts)


# --- how Python is named -----------------------------------------------------------------------------


def route_of(python: str, bat: str = BAT, **options: Any) -> tuple[str, str]:
    options["python"] = python
    made = render(bat, **options)
    program = made.bat.decode("utf-8").splitlines()[-2]
    return made.route, program.split('"')[1]


@pytest.mark.parametrize("name", ["LOCALAPPDATA", "APPDATA", "USERPROFILE", "ProgramFiles", "ProgramData"])
def test_each_folder_variable_is_used_in_any_case_of_its_name(name: str) -> None:
    python = "E:\\폴더\\Python\\python.exe"
    for spelled, value in ((name, "E:\\폴더"), (name.upper(), "e:\\폴더\\"), (name.lower(), "E:/폴더")):
        assert route_of(python, environ={spelled: value}) == ("variable", f"%{name}%\\Python\\python.exe")


@pytest.mark.parametrize(
    "value", ["", "E:\\폴더2", "E:\\", "폴더", "E:\\폴더\\Python\\더", 'E:\\"', "\\\\.\\E:\\폴더", "C:\\폴더"]
)
def test_folder_variable_that_does_not_lead_there_is_passed_over(value: str) -> None:
    with pytest.raises(LauncherError) as error:
        route_of("E:\\폴더\\Python\\python.exe", environ={"APPDATA": value, "PATH": "E:\\폴더"})
    assert error.value.reason == "no-ascii-route"


def test_first_route_that_fits_wins() -> None:
    local = {"LOCALAPPDATA": f"D:\\{ODD}"}
    short: Callable[[str], str] = lambda path: "D:\\SHORT~1.EXE"  # noqa: E731
    every: dict[str, Any] = {"environ": local, "short_path": short, "allow_chcp": True}
    inside, beside = f"D:\\{ODD}\\python.exe", f"D:\\{ODD}\\é\\python.exe"
    assert route_of(PYTHON, **every) == ("ascii", PYTHON)
    assert route_of(inside, **{**every, "python_env": "PY"}) == ("python-env", "%PY%")
    assert route_of(inside, **every) == ("relative", "%~dp0python.exe")
    assert route_of(inside, bat="C:\\a\\b.bat", **every) == ("variable", "%LOCALAPPDATA%\\python.exe")
    assert route_of(beside, **every) == ("short", "D:\\SHORT~1.EXE")
    every["short_path"] = None
    assert route_of(beside, **every) == ("chcp", "%_p%")


@pytest.mark.parametrize("short", [None, f"{HANGUL}\\python.exe"])
def test_volume_without_short_names_has_no_such_route(short: str | None) -> None:
    with pytest.raises(LauncherError) as error:
        route_of(f"{HANGUL}\\python.exe", short_path=lambda path: short)  # pyright: ignore[reportUnknownLambdaType] - a stub
    assert error.value.reason == "no-ascii-route"


def test_python_that_cannot_be_named_is_refused_with_the_character_and_what_to_do() -> None:
    assert refused(python="C:\\도구\\python.exe") == (
        "no-ascii-route",
        "python: 'C:\\\\도구\\\\python.exe' has the character '도' (U+B3C4), which a batch file cannot hold for every "
        "code page; set python_env, or use a Python in an ASCII folder",
    )


def test_utf_8_is_one_line_and_the_code_page_is_back_before_python_starts() -> None:
    made = render("D:\\b.bat", python="C:\\도구 100% & (x)\\python.exe", allow_chcp=True)
    assert made.route == "chcp"
    assert made.bat.decode("utf-8").split("\r\n") == [
        "@setlocal EnableExtensions DisableDelayedExpansion",
        "@echo off",
        'set "_cp="',
        'for /f "tokens=2 delims=:." %%a in (\'"%SystemRoot%\\System32\\chcp.com"\') do set "_cp=%%a"',
        '"%SystemRoot%\\System32\\chcp.com" 65001 >nul || exit /b 1',
        'set "_p=C:\\도구 100%% & (x)\\python.exe"',
        'if defined _cp "%SystemRoot%\\System32\\chcp.com" %_cp% >nul',
        '@"%_p%" "%~dp0b.launch.py" %*',
        "@exit /b %errorlevel%",
        "",
    ]
    assert refused(python="C:\\\ud800\\python.exe", allow_chcp=True)[0] == "no-ascii-route"


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["bat", "script", "python", "cwd"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [("x\\y.bat", "relative-path"), ("C:\\a\0b.bat", "bad-path"), ("C:\\a\rb.bat", "bad-path"),
     ("C:\\a\nb.bat", "bad-path"), ('C:\\a"b.bat', "bad-path")],
)  # fmt: skip
def test_every_path_is_checked(field: str, path: str, reason: str) -> None:
    code, text = refused(**{field: path})
    assert code == reason
    assert text.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("options", "reason", "text"),
    [
        ({"bat": "C:\\%x%\\a.bat"}, "unsafe-batch-path", "bat: 'C:\\\\%x%\\\\a.bat' has two '%'; cmd takes"),
        ({"bat": "C:\\a.txt"}, "bad-path", "bat: 'C:\\\\a.txt' does not end in .bat or .cmd"),
        ({"bat": "\\\\?\\C:\\" + "a" * 300 + ".bat"}, "bad-path", "has 307 characters, and cmd can use 259"),
        ({"script": "D:\\x\\old.CMD"}, "batch-program", "is a batch file, to which arguments cannot be given safely"),
        ({"bat": "D:\\x\\a.bat", "script": "d:\\X\\a.launch.py"}, "bad-path", "is where the sidecar goes"),
        ({"args": ["ok", "a\0b"]}, "nul-in-arg", "args[1]: 'a\\x00b' has the character '\\x00' (U+0000)"),
        ({"script": "D:\\x\\a.exe", "args": ["a" * 32_767]}, "too-long", "Windows takes 32766"),
        ({"python": "C:\\" + "a" * 8000}, "too-long", "it makes a line of 8032 characters; cmd can read 8000"),
        ({"python_args": ["-X", "a&b"]}, "bad-option", "python_args: 'a&b' is more than ASCII letters"),
        ({"python_args": ["-Ｘ"]}, "bad-option", "python_args: '-Ｘ' is more than ASCII letters"),
        ({"python_env": "A%B"}, "bad-env", "python_env: 'A%B' is not a name of ASCII letters"),
        ({"python_env": ""}, "bad-env", "python_env: '' is not a name"),
        ({"env": {"A=B": "x"}}, "bad-env", "env: 'A=B' is no variable's name"),
        ({"env": {"": "x"}}, "bad-env", "env: '' is no variable's name"),
        ({"env": {"Path": "x", "A": "y", "PATH": None}}, "bad-env", "env: 'Path' and 'PATH' are one variable"),
        ({"bat": "C:\\a\\con.bat"}, "bad-path", "bat: 'C:\\\\a\\\\con.bat' is the device CON for Windows"),
        ({"python_args": ["-I", "run.py"]}, "bad-option", "python_args: 'run.py' is no option before a script"),
        ({"env": {"A": "x\0"}}, "bad-env", "env['A']: 'x\\x00' has the character '\\x00'"),
    ],
)  # fmt: skip
def test_what_no_batch_file_can_do_is_refused_with_the_reason(options: dict[str, Any], reason: str, text: str) -> None:
    code, said = refused(**options)
    assert (code, said) == (reason, said)
    assert text in said


def test_arguments_of_a_python_file_may_be_longer_than_a_command() -> None:
    assert isinstance(render(args=["a" * 100_000]), Launcher)


@pytest.mark.parametrize("option", ["-c", "-m", "-", "-Ic", "-mIx", "-h", "-V", "--help", "x", "-i,"])
def test_python_argument_that_would_keep_the_sidecar_from_running_is_refused(option: str) -> None:
    code, text = refused(python_args=["-I", option])
    assert code == "bad-option"
    assert text == (
        f"python_args: {option!r} is no option before a script; Python would not start the one that is given"
    )


@pytest.mark.parametrize("options", [["-X", "utf8"], ["-Xutf8"], ["-W", "error"], ["-Werror"], ["-IS"], ["-u", "-O"]])
def test_python_argument_before_a_script_is_taken(options: list[str]) -> None:
    assert render(python_args=options).argv[1:-1] == options


@pytest.mark.parametrize("char", list("&^,;=()"))
def test_batch_path_that_lists_leave_unquoted_is_warned_of(char: str) -> None:
    (warning,) = render(f"C:\\a{char}b\\c.bat").warnings
    assert f"has {char} and no space" in warning
    assert "batch_command" in warning
    assert render(f"C:\\a{char}b\\c d.bat").warnings == ()


# --- calling it --------------------------------------------------------------------------------------


def test_command_quotes_every_word() -> None:
    assert batch_command("C:\\a&b\\c.bat") == '"C:\\a&b\\c.bat"'
    assert batch_command("c.bat", ["", "a b", "x&y^|<>()!%", "C:\\d\\", "e\\\\"]) == (
        '"c.bat" "" "a b" "x&y^|<>()!%" "C:\\d\\\\" "e\\\\\\\\"'
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["c.bat", 'say "x"'], "args[0]: 'say \"x\"' has the character '\"' (U+0022)"),
        (["c.bat", "a", "b\nc"], "args[1]: 'b\\nc' has the character '\\n' (U+000A)"),
        (["c.bat", "a\rb"], "U+000D"),
        (["c\0.bat"], "bat: 'c\\x00.bat' has the character '\\x00' (U+0000)"),
        (["c.bat", "%PATH%"], "args: two '%'"),
        (["c%.bat", "50%"], "args: two '%'"),
    ],
)
def test_argument_that_cmd_would_change_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(LauncherError) as error:
        batch_command(words[0], words[1:])
    assert error.value.reason == "unsafe-arg"
    assert text in str(error.value)
    assert "Launcher.argv" in str(error.value)


def test_line_that_cmd_cannot_read_is_refused() -> None:
    batch_command("c.bat", ["a" * 7_900])
    with pytest.raises(
        LauncherError, match=r"args: they make a line of 8103 characters; cmd can read 8000; use Laun"
    ) as e:
        batch_command("c.bat", ["a" * 8_093])
    assert e.value.reason == "too-long"
