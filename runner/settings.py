"""Settings from flags, then `RUNNER_*` variables, `.env`, `[tool.runner]` and the defaults."""

from __future__ import annotations

import os
import re
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
)

from runner.errors import UsageError
from runner.records.size_limits import MAX_DEAD, MAX_DEAD_BYTES, MAX_RESULT, MAX_RUN, MAX_STATE
from runner.store.addresses import (
    ALTERNATIVE,
    ANOTHER,
    CLUSTERS,
    MOST_PARTITIONS,
    NAMESPACE,
    SENTINELS,
    PartitionAddress,
    canonical,
    cluster,
    partition_addresses,
    sentinels,
)
from runner.store.archive import POSTGRES

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
STORES = frozenset({"redis", "rediss", "unix", "fakeredis", *SENTINELS, *CLUSTERS})
BROKERS = STORES | {
    "redis+socket",
    "valkey",
    "valkeys",
    "amqp",
    "amqps",
    "pyamqp",
    "sqs",
    "memory",
}

URLS: dict[str, tuple[re.Pattern[str], frozenset[str], str]] = {
    "redis_url": (ANOTHER, STORES, "give a URL such as redis://localhost:6379/0"),
    "broker_url": (
        ALTERNATIVE,
        BROKERS,
        "give a URL of a Redis, Valkey (redis://, sentinel://), RabbitMQ (amqp://localhost:5672//) or SQS",
    ),
}
"""Settings with addresses: the separator of several addresses, their schemes, and an example."""

SECRETS = (
    "redis_url",
    "broker_url",
    "archive",
    "server_secret",
    "proxy_secret",
    "mcp_keys",
    "slack_token",
    "slack_signing_secret",
    "mail_server",
)
"""Settings that may also be given by RUNNER_<NAME>_FILE, the path of a file with the value."""

DAY = 86_400.0
CENTURY = 36_525 * DAY
"""The longest time that can be set; endless times aren't allowed."""

LEAST = 500
"""The smallest limit in bytes; a lower limit would refuse everything."""

MOST = 512 * 2**20
"""Bytes of the largest value that Redis stores."""


MOST_STEPS = 20
"""The most attempts to deliver to a webhook after the first."""


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


Names = Annotated[list[str], NoDecode, BeforeValidator(_split)]
Numbers = Annotated[list[float], NoDecode, BeforeValidator(_split)]
ByteLimit = Annotated[int, Field(ge=LEAST, le=MOST)]
Interval = Annotated[float, Field(ge=0.1, le=DAY)]
Pause = Annotated[float, Field(ge=0, le=DAY)]
LongTime = Annotated[float, Field(ge=1, le=CENTURY)]


class Settings(BaseSettings):
    """Everything that can be set; seconds may be fractional."""

    model_config = SettingsConfigDict(
        env_prefix="RUNNER_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        pyproject_toml_table_header=("tool", "runner"),
    )

    redis_url: str = DEFAULT_REDIS_URL
    broker_url: str = ""
    partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 1
    """Parts of the store, each with its own runs; one for each URL in RUNNER_REDIS_URL."""
    namespace: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] = NAMESPACE
    """Prefix of every key and queue: environments with different prefixes can share a server."""
    graphs: Names = []
    lease: Annotated[float, Field(ge=1, le=DAY)] = 30.0
    """Seconds a worker may be silent before its node runs again."""
    sweep_interval: Interval = 5.0
    """Seconds between two sweeps for due work."""
    max_wait: Pause = 300.0
    """Seconds that a ready node may wait for a worker before `runner doctor` fails."""
    retention: LongTime = 7 * DAY
    """Seconds that a finished run is kept."""
    archive: str = ""
    """Destination of ended runs before they expire: a folder, or the URL of a Postgres database."""
    archive_hold: LongTime = 7 * DAY
    """Seconds that an ended run is kept for an archive that can't be written; then it expires."""
    shutdown_grace: Annotated[float, Field(ge=0, le=CENTURY)] = 600.0
    """Seconds that nodes have to end in a worker that was asked to stop."""
    early_answer: Pause = 60.0
    """Seconds that an answer waits for a question that is not asked yet."""
    dead_letters: PositiveInt = MAX_DEAD
    """The most dead letters of messages that are kept."""
    dead_bytes: PositiveInt = MAX_DEAD_BYTES
    """Bytes of messages' dead letters at which the older half is deleted."""
    max_result: ByteLimit = MAX_RESULT
    """The most bytes of one result, message, task or invocation state."""
    max_state: ByteLimit = MAX_STATE
    """The most bytes of the state that a waiting node stores."""
    max_run: Annotated[int, Field(ge=LEAST)] = MAX_RUN
    """The most bytes of a run with all runs inside it."""
    max_open_runs: Annotated[int, Field(ge=0)] = 0
    """The most runs that may be open at once, in all; 0 for any number."""
    durability: Literal["fast", "fsync", "replica"] = "fast"
    """Guarantee of an acknowledged write: see deploy."""
    audit: Literal["off", "approvals", "all"] = "approvals"
    """Contents of the audit: nothing, runs with questions that have a rule, or every run."""
    audit_key: str = ""
    """File with the Ed25519 key that signs the audit; without it nothing is signed."""
    audit_seal: Interval = 10.0
    """Seconds between two seals of the audit's new entries."""
    audit_sign: Pause = 60.0
    """Seconds between two signed checkpoints of the audit."""
    audit_anchor: Names = []
    """Destinations of signed checkpoints: log, file:PATH, https://HOST/PATH."""
    audit_keep: LongTime = 183 * DAY
    """Seconds that sealed entries of the audit stay in the store before they go to an archive."""
    events: bool | None = None
    """Send Celery's task events, which Flower shows; unset, while a monitor listens."""
    on_end: Names = []
    """The Celery tasks that a start message may name in on_end."""
    server_secret: str = ""
    """A random text shared by all server processes; without it a form works only in its process."""
    proxy_secret: str = ""
    """A text that the proxy in front of the server sends in X-Proxy-Secret beside each login."""
    server_url: str = ""
    """The address at which people open the server, for links to a run or a question."""
    cors_origins: Names = []
    """Origins whose pages may use the API with a key, such as https://app.example."""
    flower_url: str = ""
    """The address of Flower, for links from a node."""
    trace_url: str = ""
    """The address of a trace, with {trace_id}, for links from a node."""
    alive_file: str = ""
    """A file that a worker creates when it is ready and touches while it lives, for probes."""
    log_format: Literal["text", "json"] = "text"
    """Form of the log of a worker or server: text, or a JSON document on each line."""
    webhook_allow: Names = []
    """Networks (CIDR) besides the Internet that webhooks may be sent to, also by plain http."""
    webhook_retry: Numbers = [
        5,
        300,
        1800,
        7200,
        28_800,
        86_400,
    ]
    """Seconds between the attempts to deliver to a webhook."""
    mcp_graphs: Names = []
    """The graphs that clients of the MCP server may run."""
    mcp_write: bool = False
    """Allow clients of the MCP server to also stop runs and vote as agents."""
    mcp_keys: str = ""
    """Random texts of 32 or more characters, the same on all servers, that seal MCP clients' data.

    The first text seals; all of them open.
    """
    slack_team: str = ""
    """The id of the Slack workspace whose people may decide: T0123456789."""
    slack_channels: Names = []
    """Ids of the Slack channels that get questions: one for all graphs, or GRAPH=CHANNEL each."""
    slack_direct: bool = False
    """Tell people of questions in direct messages, instead of mentions in the channel's thread."""
    slack_token: str = ""
    """The token of the Slack app's bot, which writes the messages."""
    slack_signing_secret: str = ""
    """The secret with which Slack signs its requests to the app."""
    slack_url: str = "https://slack.com/api/"
    """The address of Slack's API."""
    mail_server: str = ""
    """The server that sends links to questions by mail: smtp://user:password@mail.example.com:587."""
    mail_from: str = ""
    """The sender's address of mails with links to questions."""
    mail_unsubscribe: str = ""
    """The address to unsubscribe from them, mailto: or https:, for the header List-Unsubscribe."""
    mail_digests: Names = []
    """When mails list all questions that wait for a person, instead of one each: [ADDRESS=]CRON ZONE."""
    directory: str = ""
    """`module:object` that knows the groups and roles of people: see approvals."""
    plain_names_issuer: str = ""
    """The issuer of names written without an issuer, for exclusions; "" for any."""
    decision_keys: str = ""
    """A file with the public keys (JWKS) that check signed decisions: see approvals."""
    signing_key: str = ""
    """A file with the private key that signs this process's decisions."""

    def __init__(self, **values: Any) -> None:
        """Read the settings; values passed here override all others.

        Raises:
            UsageError: a value can't be used; the message names the setting and the value.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(f"invalid setting {_first_problem(error)}.") from None

    @field_validator("redis_url", "broker_url")
    @classmethod
    def _check_url(cls, url: str, field: ValidationInfo) -> str:
        separator, schemes, hint = URLS[str(field.field_name)]
        servers = separator.split(url.strip()) if url else []
        if not all("://" in url and url.partition("://")[0] in schemes for url in servers):
            raise ValueError(hint)
        return separator.pattern[0].join(map(canonical, servers))

    @field_validator("partitions")
    @classmethod
    def _check_partitions(cls, number: int, field: ValidationInfo) -> int:
        servers = len(ANOTHER.split(field.data.get("redis_url", "")))
        if servers > 1 and number not in {1, servers}:
            raise ValueError(f"RUNNER_REDIS_URL names {servers} servers, one for each")
        return number

    @field_validator("archive")
    @classmethod
    def _check_archive(cls, target: str) -> str:
        if "://" in target and not target.startswith(POSTGRES):
            raise ValueError("give a folder, or a URL such as postgresql://localhost/runs")
        return target

    @field_validator("webhook_allow")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError("give networks such as 10.0.0.0/8") from None
        return networks

    @field_validator("webhook_retry")
    @classmethod
    def _check_steps(cls, steps: list[float]) -> list[float]:
        if len(steps) > MOST_STEPS or not all(0 <= step <= 7 * DAY for step in steps):
            raise ValueError("give 20 numbers of seconds at most, each a week at most")
        return steps

    @property
    def partition_addresses(self) -> tuple[PartitionAddress, ...]:
        """The address of each partition of the store."""
        return partition_addresses(self.redis_url, self.partitions)

    @property
    def first_url(self) -> str:
        """The server of the first partition, which also has the message streams and the workers."""
        return self.partition_addresses[0].url

    @property
    def broker(self) -> str:
        """The broker's URL as kombu reads it: the store's first server, unless another is set."""
        return ";".join(map(as_broker, ALTERNATIVE.split(self.broker_url or self.first_url)))

    def page(self, path: str) -> str:
        """Return the address of a page of the server; "" if RUNNER_SERVER_URL isn't set."""
        return self.server_url and f"{self.server_url.rstrip('/')}{path}"

    @property
    def messages_queue(self) -> str:
        """The broker's queue of the tasks runner.start and runner.respond, for all workers."""
        return self.namespace

    def node_queue(self, queue: str) -> str:
        """Return the broker's name of a queue of nodes: "refund" is `runner/refund` there.

        Neither a namespace nor the store's keys have a "/" in this place, so the name can't collide
        with another environment's queue or with a key.
        """
        return f"{self.namespace}/{queue}"

    @property
    def broker_is_store(self) -> bool:
        """True if the store's scripts can ring doorbells: same Redis, same database."""
        if cluster(self.first_url):
            return False
        if (service := sentinels(self.broker_url)) is not None:
            return service == sentinels(self.first_url)
        return same_database(self.broker, as_broker(self.first_url))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put secret files after the variables, and pyproject.toml after the environment."""
        pyproject = PyprojectTomlConfigSettingsSource(settings_cls)
        return (
            init_settings,
            env_settings,
            SecretFiles(settings_cls),
            dotenv_settings,
            pyproject,
        )


class SecretFiles(PydanticBaseSettingsSource):
    """Secrets from files, as in containers: RUNNER_REDIS_URL_FILE=/run/secrets/redis_url."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - pydantic-settings' signature
        """Return the content of the setting's file; None without a file."""
        variable = f"RUNNER_{field_name.upper()}_FILE"
        path = os.environ.get(variable, "") if field_name in SECRETS else ""
        try:
            return (
                (Path(path).read_text(encoding="utf-8").strip() if path else None),
                field_name,
                False,
            )
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"{path}, which {variable} names, can't be read: {error}."
            ) from error

    def __call__(self) -> dict[str, Any]:
        """Return the settings that are given by files."""
        values = {name: self.get_field_value(None, name)[0] for name in SECRETS}
        return {name: value for name, value in values.items() if value is not None}


def _first_problem(error: ValidationError) -> str:
    """Describe the first wrong setting, without the value of a URL, which may hold a password."""
    problem = error.errors(include_url=False)[0]
    name = ".".join(str(key) for key in problem["loc"]).upper()
    value = "" if name.endswith("_URL") or name == "ARCHIVE" else f", not {problem['input']!r}"
    return f"RUNNER_{name}: {problem['msg'].removeprefix('Value error, ')}{value}"


def as_broker(redis_url: str) -> str:
    """Return a Redis URL in kombu's form: sockets are `redis+socket://`, and TLS must be verified.

    kombu has no scheme for Valkey, which uses the Redis protocol.

    Raises:
        UsageError: a URL of Sentinels or of a cluster can't be read.
    """
    service = sentinels(redis_url) or cluster(redis_url)
    if service is not None:
        return service.broker_url
    url = (
        redis_url.replace("valkey", "redis", 1) if redis_url.startswith("valkey") else redis_url
    )
    if url.startswith("rediss://") and "ssl_cert_reqs=" not in url:
        # Without it kombu accepts any certificate; the store's client accepts only verified ones.
        return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    if url.startswith("unix://"):
        return url.replace("unix", "redis+socket", 1).replace("?db=", "?virtual_host=")
    return url


def rabbitmq_tls(url: str) -> dict[str, Any]:
    """Return TLS options that verify the certificate's name, too: py-amqp verifies only who signed it."""
    address = urlsplit(url)
    if address.scheme != "amqps" or ";" in url:
        return {}
    return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": address.hostname}


def same_database(url: str, other_url: str) -> bool:
    """Return whether two broker URLs name the same Redis server and database number.

    Raises:
        UsageError: a URL can't be read.
    """
    try:
        return _database(url) == _database(other_url)
    except ValueError as error:
        raise UsageError(f"the address of the broker can't be read: {error}.") from None


def _database(url: str) -> object:
    if ALTERNATIVE.search(url) or url.startswith("sentinel://"):
        return url
    address = urlsplit(canonical(url))
    if address.scheme == "redis+socket":
        return address.path, address.query or "virtual_host=0"
    host = "127.0.0.1" if address.hostname in {None, "localhost"} else address.hostname
    return address.scheme.replace("rediss", "redis"), host, address.port or 6379, address.path
