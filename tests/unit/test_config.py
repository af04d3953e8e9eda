"""orch.toml and the environment: which file holds, what it says, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import InputError
from orchestrator.settings import config
from orchestrator.settings.backends import RayBackend
from orchestrator.settings.config import RateSettings
from orchestrator.settings.discovery import Place, find_file, locate

LOCAL = '[backends.gpu]\nupstreams = ["http://127.0.0.1:8000/v1/"]\nidle = true\n'


def loaded(folder: Path, text: str) -> config.Config:
    path = folder / "orch.toml"
    path.write_text(text)
    return config.load(Place(path, folder, "sqlite:///x", 1.0))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working directory two levels deep, a user's config folder, and an orch.toml nowhere yet."""
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "user" / "orch").mkdir(parents=True)
    return tmp_path


PLACES = {
    "named": "named.toml",
    "here": "work/deep/orch.toml",
    "parent": "work/orch.toml",
    "user": "user/orch/orch.toml",
}


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["named", "here", "parent", "user"], "named"),
        (["here", "parent", "user"], "here"),
        (["parent", "user"], "parent"),
        (["user"], "user"),
        ([], None),
    ],
    ids=["ORCH_CONFIG", "working directory", "a parent", "the user's", "none"],
)
def test_the_nearest_orch_toml_holds(tree: Path, there: list[str], found: str | None) -> None:
    for name in there:
        (tree / PLACES[name]).write_text(f'home = "{name}"')
    environ = {"XDG_CONFIG_HOME": str(tree / "user")}
    if "named" in there:
        environ["ORCH_CONFIG"] = str(tree / PLACES["named"])
    path = find_file(environ, tree / "work" / "deep")
    assert path == (tree / PLACES[found] if found else None)
    expected = path.parent / found if path and found else Path.home() / ".local" / "share" / "orch"
    assert locate(environ, tree / "work" / "deep").home == expected


def test_a_named_file_that_is_not_there_is_an_error_and_not_another_file(tree: Path) -> None:
    (tree / "work" / "orch.toml").write_text("")
    with pytest.raises(InputError, match="there is no such file"):
        locate({"ORCH_CONFIG": str(tree / "nowhere.toml")}, tree / "work")


@pytest.mark.parametrize(
    ("environ", "text", "home", "url"),
    [
        ({}, "", "{data}/orch", "sqlite:///{data}/orch/orch.db"),
        ({}, 'home = "state"', "{work}/state", "sqlite:///{work}/state/orch.db"),
        ({}, 'home = "/state"', "/state", "sqlite:////state/orch.db"),
        ({"ORCH_HOME": "/elsewhere"}, 'home = "state"', "/elsewhere", "sqlite:////elsewhere/orch.db"),
        ({}, 'database_url = "postgresql://h/d"', "{data}/orch", "postgresql+psycopg://h/d"),
        ({"ORCH_DATABASE_URL": "postgres://h/e"}, 'database_url = "x"', "{data}/orch", "postgresql+psycopg://h/e"),
        ({"ORCH_DATABASE_URL": "postgresql+psycopg://h/e"}, "", "{data}/orch", "postgresql+psycopg://h/e"),
        ({"ORCH_HOME": "/h", "ORCH_DATABASE_URL": ""}, "", "/h", "sqlite:////h/orch.db"),
    ],
    ids=["nothing said", "beside the file", "absolute", "ORCH_HOME wins", "url", "ORCH_DATABASE_URL wins", "driver",
         "an empty variable"],
)  # fmt: skip
def test_home_and_database(tmp_path: Path, environ: dict[str, str], text: str, home: str, url: str) -> None:
    (tmp_path / "orch.toml").write_text(text)
    place = locate({"XDG_DATA_HOME": str(tmp_path / "data"), **environ}, tmp_path)
    names = {"work": str(tmp_path), "data": str(tmp_path / "data")}
    assert (str(place.home), place.database_url) == (home.format(**names), url.format(**names))


MANY_PARTS = ":1: is not valid TOML: a key of more than 50 parts"
ENDLESS = {
    "a key of many parts": ("a." * 100_000 + "a = 1\n", MANY_PARTS),
    "such a key in a value": (
        "x = {" + "a . " * 50_000 + "a = 1}\n",
        ":1: is not valid TOML: a key of more than 50 parts",
    ),
    "a large file": ("a = '" + "x" * 1_000_000 + "'", ": is larger than 1,000,000 bytes"),
}


@pytest.mark.parametrize(("text", "message"), ENDLESS.values(), ids=ENDLESS)
def test_a_file_that_would_take_minutes_to_parse_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """`orch status` took 23 GB for the first, and was killed."""
    (tmp_path / "orch.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        locate({}, tmp_path)
    assert str(raised.value).partition("orch.toml")[2] == message


def test_places_are_found_before_a_header_that_is_refused(tmp_path: Path) -> None:
    """Its other readers tell the mistake."""
    (tmp_path / "orch.toml").write_text("home = 'here'\n[" + "a." * 100_000 + "a]\n")
    assert locate({}, tmp_path).home == tmp_path / "here"


def test_the_databases_timeout_is_a_number_of_seconds(tmp_path: Path) -> None:
    assert locate({}, tmp_path).database_timeout == 10.0
    assert locate({"ORCH_DATABASE_TIMEOUT": "2.5"}, tmp_path).database_timeout == 2.5
    with pytest.raises(InputError) as raised:
        locate({"ORCH_DATABASE_TIMEOUT": "soon"}, tmp_path)
    assert str(raised.value) == "ORCH_DATABASE_TIMEOUT: 'soon' is not a number of seconds"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a = 1\nhome = ",
            ":2: is not valid TOML: Invalid value\n"
            "  hint: nothing follows the equals sign: write  home = VALUE, or leave the line out",
        ),
        ("home = 5", ":1: home: Input should be a valid string\n  hint: put it in quotes"),
    ],
    ids=["broken", "no string"],
)
def test_a_broken_file_is_an_error_for_a_home_too(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "orch.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        locate({"ORCH_HOME": "/h"}, tmp_path)
    assert str(raised.value) == f"{tmp_path / 'orch.toml'}{told}"


def test_what_a_backend_is_when_little_is_said(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LOCAL + '[models]\nsmall = "m"\nbig = {gpu = "b"}\n')
    gpu = settings.backends["gpu"]
    assert gpu.upstreams == ("http://127.0.0.1:8000/v1",)
    # An address on loopback says nothing about where the text ends up.
    assert gpu.location == "hosted"
    # What a batch may hold is the profile's to say.
    assert (gpu.limits.max_rows, gpu.limits.max_bytes) == (None, None)
    assert settings.models == {"small": "m", "big": {"gpu": "b"}}
    assert settings.report.compare == "openai:gpt-5-nano"


def test_a_price_by_the_hour_is_exact(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LOCAL.replace("idle = true", "cost_per_hour = 2.30"))
    assert settings.backends["gpu"].cost_per_hour == Decimal("2.3")


def test_no_file_at_all_means_no_backends(tmp_path: Path) -> None:
    settings = config.load(Place(None, tmp_path, "sqlite:///x", 1.0))
    assert (settings.backends, settings.models, settings.path, settings.home) == ({}, {}, None, tmp_path)


PRICE = "say what an hour costs: either `cost_per_hour = 2.50`, or `idle = true` for free"
FLEET = '[backends.gpu]\nkind = "engines"\ncost_per_hour = 1\n'
MODELS = '[backends.gpu.models]\nlarge = {model = "/m", tensor_parallel = 2}\n'
RAY = (
    '[backends.c]\nkind = "ray"\nray_python = "/r/bin/python"\n[backends.c.models.m]\nmodel = "/m"\n'
    'engines = "0..8"\ngpus = 2\ncost_per_hour = 4.10\n'
)
OPENAI = '[backends.cloud]\nkind = "openai"\napi_key_env = "K"\n'


def test_a_ray_cluster(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, RAY + '[backends.c.models.n]\nmodel = "hub/name"\ngpus = 0\ncost_per_hour = 0\n')
    found = cluster.backends["c"]
    assert isinstance(found, RayBackend)
    assert (found.address, found.location, found.most_engines, found.is_free) == ("auto", "hosted", 9, False)
    assert (found.models["m"].engines, found.models["n"].engines) == ((0, 8), (0, 1))
    assert [(found.gpus_of(name), found.gpu_price(name)) for name in "mn"] == [(2, Decimal("2.05")), (1, Decimal(0))]


def test_backends_of_each_kind(tmp_path: Path) -> None:
    text = (
        OPENAI
        + '[backends.azure]\nkind = "azure"\nbase_url = "https://r.openai.azure.com/openai/v1/"\napi_key_env = "K"\n'
        + '[backends.claude]\nkind = "anthropic"\napi_key_env = "K"\n'
        + '[backends.flex]\nkind = "sync"\nbase_url = "https://h/v1/"\napi_key_env = "K"\nservice_tier = "flex"\n'
        + "[prices.m]\ninput = 2.50\noutput = 10\nbatch = {input = 1.25, output = 5}\n"
    )
    settings = loaded(tmp_path, text)
    found = {name: (backend.kind, backend.location) for name, backend in settings.backends.items()}
    assert found == {
        "cloud": ("openai", "hosted"),
        "azure": ("azure", "hosted"),
        "claude": ("anthropic", "hosted"),
        "flex": ("sync", "hosted"),
    }
    assert settings.backends["flex"].base_url == "https://h/v1"
    assert settings.prices["m"].batch == RateSettings(input=Decimal("1.25"), output=Decimal(5))


BAD = {
    "more digits than a number has": (
        LOCAL + "max_concurrency = " + "9" * 5000,
        ":4: a number has more than 4,300 digits",
    ),
    "a time that no clock takes": (
        LOCAL + "patience = 1e300\n",
        ":4: backends.gpu.patience: Input should be less than or equal to 2592000",
    ),
    "a price that no ledger takes": (
        "[prices.m]\ninput = 1e300\noutput = 1\n",
        ":2: prices.m.input: Input should be less than or equal to 1000000",
    ),
    "a count that no database takes": (
        LOCAL + f"limits = {{max_rows = {2**63}}}\n",
        ":4: backends.gpu.limits.max_rows: Input should be less than or equal to 9007199254740992",
    ),
    "more years than a calendar has": (
        '[retention]\nresults = "999999d"\n',
        ":2: retention.results: Input should be less than or equal to 3153600000",
    ),
    "not a number": (LOCAL + "patience = nan\n", ":4: backends.gpu.patience: Input should be a finite number"),
    "a NUL": (
        '[report]\ncompare = "openai:\\u0000"\n',
        ":2: report.compare: holds a NUL or half a character, which is not text",
    ),
    "a kind that is none": (
        OPENAI.replace('"openai"', '"opnai"'),
        ":2: backends.cloud.kind: kind must be one of local, engines, ray, openai, azure, anthropic, bedrock, "
        "cohere, fireworks, gemini, mistral, openrouter, scaleway, together, vertex, xai, sync\n"
        '  hint: did you mean "openai"?',
    ),
    "engines of a cluster that are none": (
        RAY.replace('"0..8"', '"8..2"'),
        ":6: backends.c.models.m.engines: '8..2' is not a number of engines such as \"0..8\" or 2 (at most 4096)",
    ),
    "a cluster without its Python": (
        RAY.replace("ray_python", "# "),
        ":1: backends.c.ray_python: is required",
    ),
    "an hour of a cluster": (
        RAY.replace("ray_python", "cost_per_hour = 1\nray_python"),
        ":3: backends.c.cost_per_hour: an engine's hour is priced with its model: "
        "backends.NAME.models.MODEL.cost_per_hour",
    ),
    "a placement that is none": (
        RAY.replace("gpus = 2", 'gpus = 2\nplacement = "loose"'),
        ":8: backends.c.models.m.placement: Input should be 'pack' or 'spread'",
    ),
    "a hosted field misspelt": (
        OPENAI + 'basurl = "https://x"\n',
        ":4: backends.cloud.basurl: unknown field\n  hint: did you mean 'base_url'?",
    ),
    "a field of another kind": (
        OPENAI + "idle = true\n",
        ":4: backends.cloud.idle: unknown field\n  hint: known fields: api_key_env, base_url, dialect, discount, "
        "kind, limits, location, organization, poll_seconds, preflight, profile, project, provider, request_timeout, "
        "structured, webhook_secret_env, windows",
    ),
    "no key": (
        '[backends.cloud]\nkind = "openai"\n',
        ":1: backends.cloud.api_key_env: is required\n"
        '  hint: the variable that holds the key:  api_key_env = "MY_KEY"',
    ),
    "azure without an address": (
        OPENAI.replace('"openai"', '"azure"'),
        ':1: backends.cloud: an azure backend needs `base_url = "https://RESOURCE.openai.azure.com/openai/v1/"`',
    ),
    "a window that is none": (
        OPENAI + 'windows = ["24h", "soon"]\n',
        ":4: backends.cloud.windows: 'soon' is not a window such as 24h, 7d or 30m",
    ),
    "a tier that is none": (
        '[backends.f]\nkind = "sync"\nbase_url = "https://h/v1"\napi_key_env = "K"\nservice_tier = "fast"\n',
        ":5: backends.f.service_tier: Input should be 'auto', 'default', 'flex' or 'priority'",
    ),
    "a price below zero there": (
        "[prices.m]\ninput = -1\noutput = 1\n",
        ":2: prices.m.input: Input should be greater than or equal to 0",
    ),
    "no price": (LOCAL.replace("idle = true\n", ""), f":1: backends.gpu: {PRICE}"),
    "two prices": (LOCAL + "cost_per_hour = 1\n", f":1: backends.gpu: {PRICE}"),
    "idle false": (LOCAL.replace("true", "false"), f":1: backends.gpu: {PRICE}"),
    "a price below zero": (
        LOCAL.replace("idle = true", "cost_per_hour = -1"),
        ":3: backends.gpu.cost_per_hour: Input should be greater than or equal to 0",
    ),
    "no upstreams": (
        "[backends.gpu]\nidle = true\n",
        ':1: backends.gpu.upstreams: is required\n  hint: for a provider\'s Batch API, add  kind = "openai"',
    ),
    "an empty list": (
        LOCAL.replace('"http://127.0.0.1:8000/v1/"', ""),
        ":2: backends.gpu.upstreams: must not be empty",
    ),
    "no URL": (
        LOCAL.replace("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ":2: backends.gpu.upstreams: '127.0.0.1:8000/v1/' is not an http(s) URL such as http://127.0.0.1:8000/v1",
    ),
    "a location misspelt": (
        LOCAL + 'location = "lokal"\n',
        ":4: backends.gpu.location: Input should be 'hosted' or 'local'\n  hint: did you mean 'local'?",
    ),
    "a field misspelt": (
        LOCAL + 'api_key = "x"\n',
        ":4: backends.gpu.api_key: unknown field\n  hint: did you mean 'api_key_env'?",
    ),
    "a limit misspelt": (
        LOCAL + "[backends.gpu.limits]\nmax_row = 5\n",
        ":5: backends.gpu.limits.max_row: unknown field\n  hint: did you mean 'max_rows'?",
    ),
    "a table misspelt": (
        LOCAL + "[modles]\na = 'b'\n",
        ":4: modles: unknown field\n  hint: did you mean 'models'?",
    ),
    "a backend with a space": (
        LOCAL.replace("gpu", '"a b"'),
        ":1: backends.a b: String should match pattern '^[A-Za-z0-9_-]{1,40}$'\n"
        "  hint: letters, digits, - and _ alone, such as my-gpu",
    ),
    "compare without a provider": (
        '[report]\ncompare = "gpt-5-nano"\n',
        ":2: report.compare: String should match pattern '^[^:\\s]+:[^\\s]+$'\n"
        "  hint: write PROVIDER:MODEL, such as openai:gpt-5-nano",
    ),
    "hours that are none": (
        FLEET + 'hours = "20-7"\n' + MODELS,
        ":4: backends.gpu.hours: '20-7' is not a time span such as \"20:00-07:00\"",
    ),
    "an empty span of hours": (
        FLEET + 'hours = "20:00-20:00"\n' + MODELS,
        ":4: backends.gpu.hours: '20:00-20:00' spans no time; leave out `hours` for the whole day",
    ),
    "GPUs that are none": (
        FLEET + 'gpus = "all"\n' + MODELS,
        ":4: backends.gpu.gpus: 'all' are not GPUs such as 0-3 or 0,2",
    ),
    "a GPU twice": (FLEET + 'gpus = "0-2,1"\n' + MODELS, ":4: backends.gpu.gpus: '0-2,1' names a GPU twice"),
    "a quota that is none": (
        FLEET + "vram = 60\n" + MODELS,
        ":4: backends.gpu.vram: 60 is not an amount of memory such as 60GiB or 24GB",
    ),
    "an idle time that is none": (
        FLEET + "idle = true\n" + MODELS,
        ':4: backends.gpu.idle: True is not a length of time such as "10m" or "1h"',
    ),
    "GPUs that do not divide": (
        FLEET + 'gpus = "0-2"\n' + MODELS,
        ":1: backends.gpu: model large takes 2 GPUs; `gpus` has 3, not a multiple",
    ),
    "a fleet without models": (
        FLEET,
        ":1: backends.gpu.models: is required\n"
        '  hint: the models that it starts:  [backends.NAME.models.ALIAS]  model = "FOLDER_OR_NAME"',
    ),
    "a zone that is none": (
        '[reports]\ntz = "Europe/Berln"\n',
        ":2: reports.tz: 'Europe/Berln' is not a time zone; did you mean Europe/Berlin?",
    ),
    "broken": (
        "a = 1\nb = = 2\n",
        ":2: is not valid TOML: Invalid value\n  hint: write one equals sign:  b = …",
    ),
    "a text without quotes": (
        "home = /data\n",
        ':1: is not valid TOML: Invalid value\n  hint: write  home = "/data"',
    ),
    "as YAML writes it": (
        "home: /data\n",
        ":1: is not valid TOML: Expected '=' after a key in a key/value pair\n  hint: TOML writes  home = \"/data\"",
    ),
    "Python's truth": (
        "[backends.g]\nidle = True\n",
        ":2: is not valid TOML: Invalid value\n  hint: write  idle = true",
    ),
}


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD.keys())
def test_a_bad_setting_is_told_with_line_and_field(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as raised:
        loaded(tmp_path, text)
    assert str(raised.value) == f"{tmp_path / 'orch.toml'}{told}"


@pytest.mark.parametrize("user", ["user:geheim@", ":geheim@", "geheim@"])
def test_a_password_in_an_address_is_refused_and_not_told(tmp_path: Path, user: str) -> None:
    with pytest.raises(InputError, match="a URL may not carry a password; name the key's variable") as raised:
        loaded(tmp_path, LOCAL.replace("http://", f"http://{user}"))
    assert "geheim" not in str(raised.value)
    assert raised.value.line == 2


@pytest.mark.parametrize("port", ["99999", "80a", "0", "-1", "８０a", "9" * 5000])
@pytest.mark.parametrize(
    "text",
    [
        '[backends.l]\nupstreams = ["URL"]\nidle = true\n',
        '[backends.l]\nkind = "openai"\napi_key_env = "K"\nbase_url = "URL"\n',
        '[telemetry]\nendpoint = "URL"\n',
    ],
)
def test_a_port_that_is_none_is_told_with_its_field(tmp_path: Path, text: str, port: str) -> None:
    path = tmp_path / "orch.toml"
    path.write_text(text.replace("URL", f"http://host:{port}/v1"))
    with pytest.raises(InputError, match="is not an http"):
        config.load(Place(path, tmp_path, "sqlite:///x.db", 1.0))


@pytest.mark.parametrize("text", ["[KEY]\n", '["KEY"]\n', "[[KEY]]\n", "KEY = 1\n", "x = {KEY = 1}\n"])
def test_a_key_without_end_is_told_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "orch.toml"
    path.write_text("# settings\n" + text.replace("KEY", "a" * 200_000))
    with pytest.raises(InputError) as caught:
        config.load(Place(path, tmp_path, "sqlite:///x.db", 1.0))
    assert (caught.value.line, len(str(caught.value)) < 500) == (2, True)


@pytest.mark.parametrize(
    "table", ["[backends.o]\nkind = 'openai'\napi_key_env = '{}'", "[reports]\nwebhook_env = '{}'"]
)
def test_a_secret_in_the_place_of_a_name_is_not_repeated(tmp_path: Path, table: str) -> None:
    for secret in ("sk-proj-0123456789abcdef", "https://hooks.example/T0/B1/x", "Z" * 150, "a b", ""):
        with pytest.raises(InputError, match="is not the name of an environment variable") as raised:
            loaded(tmp_path, table.format(secret))
        assert not secret or secret not in str(raised.value)
