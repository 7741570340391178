"""An agent of the Claude Agent SDK as a node (extra `claude-agent`).

The SDK runs Claude Code, which stops at a call of a gated tool. The call becomes one question with
its exact input, and a rule may decide it. The transcript is stored; any worker can then continue.
After a crash the agent repeats its work since the last pause. Errors of Claude Code fail the node.

Claude Code makes a deferred call as soon as it restarts, perhaps before it knows the hooks. So its
settings have an ask rule for each gated tool, and both the hook and that request get the decision.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import async_loop
from runner.agent.machine.state import add_usage
from runner.approvals.gate import CallState
from runner.approvals.policies import Gates, ToolApprovals
from runner.errors import DefinitionError, NodeFailed, needs_extra
from runner.integrations.framework import (
    Approved,
    Asked,
    Denied,
    FrameworkCall,
    FrameworkExecution,
    FrameworkNode,
    Past,
    approval,
    packed,
    text_input,
    usage_of,
)
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.executors import Visit
from runner.records.outcomes import Interrupted, Outcome, Succeeded

with needs_extra("claude-agent", "ClaudeAgent"):
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        HookMatcher,
        PermissionResultAllow,
        PermissionResultDeny,
        ResultMessage,
        project_key_for_directory,
        query,
    )

KIND = "claude_agent"

RESERVED = (
    "continue_conversation",
    "fork_session",
    "permission_prompt_tool_name",
    "resume",
    "resume_session_at",
    "session_id",
    "session_store",
)
"""Options that the node sets itself."""

ALONE = "People decide on this call. Make it again as the only call of your reply, in the main conversation."


class ClaudeAgent(FrameworkNode):
    """A node that runs an agent of the Claude Agent SDK.

    A gated call is answered with true or false, with `{"kind": "tool-approved", "override_args": {...}}` or
    with `{"kind": "tool-denied", "message": ...}`, whose message goes to the model.

    Args:
        options: makes the SDK's options; it is called for each execution.
        gate: the names of tools that people decide on, such as "Bash" or "mcp__shop__refund".
        input: makes the prompt from the visit; without it the task and the inputs become a text.
        approval: the rule that decides gated calls; or a function that takes a call's arguments and
            a `CallContext` and returns its rule, or None if the call needs no approval; or a
            mapping from tool names to either. Without it any answer is accepted.
        name: the node's id, unless `add_node` gives one.
        version: change it if waiting runs must not continue with the new code.
    """

    kind = KIND
    built_type = ClaudeAgentOptions

    def __init__(
        self,
        options: Callable[[], ClaudeAgentOptions],
        *,
        gate: Sequence[str] = (),
        input: Callable[[Visit], str] | None = None,  # noqa: A002 - as in the other adapters
        approval: ToolApprovals = None,
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(options, approval, name, version)
        if isinstance(gate, str):
            raise DefinitionError(
                f"the gate of a ClaudeAgent is a list of tools' names, not {gate!r}."
            )
        self._gate = tuple(gate)
        self._input = input
        if isinstance(self._approval, Mapping) and (
            unknown := sorted(self._approval.keys() - {*gate})
        ):
            raise DefinitionError(
                f"approval= of a ClaudeAgent names {unknown}, which are not in its gate."
            )

    async def _execute(self, visit: Visit) -> Outcome:
        past = self._past(_ClaudePast, visit)
        visit.check()
        options = await async_loop.in_thread(self._factory)
        execution = _ClaudeExecution(visit, past, _checked(options), self._gate, self._approval)
        return await execution.run(self._input or text_input)


@dataclass(kw_only=True)
class _ClaudePast(Past):
    """Stored state; `call` is the deferred call of a waiting agent, `session` its session id."""

    call: JSON = None
    session: str | None = None


class DocumentStore:
    """A session store for the SDK that keeps JSON data in `rows`."""

    def __init__(self, rows: Sequence[JSON] = ()) -> None:
        self.rows = list(rows)

    async def append(self, key: Mapping[str, str], entries: Sequence[JSON]) -> None:
        """Add entries to a transcript, except entries already in it."""
        uuids = {row["entry"].get("uuid") for row in self._of(key)} - {None}
        self.rows += [
            {"key": dict(key), "entry": entry}
            for entry in entries
            if entry.get("uuid") not in uuids
        ]

    async def load(self, key: Mapping[str, str]) -> list[JSON] | None:
        """Return a transcript, or None if it has no entries."""
        return [row["entry"] for row in self._of(key)] or None

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        """List the transcripts of a session's subagents."""
        keys = [row["key"] for row in self.rows if row["key"].items() >= key.items()]
        return [*dict.fromkeys(inner["subpath"] for inner in keys if "subpath" in inner)]

    def _of(self, key: Mapping[str, str]) -> list[Any]:
        return [row for row in self.rows if row["key"] == key]


class _ClaudeExecution(FrameworkExecution[_ClaudePast]):
    """One execution: the options for Claude Code, and the state to store."""

    distribution = "claude-agent-sdk"

    def __init__(
        self,
        visit: Visit,
        past: _ClaudePast,
        options: ClaudeAgentOptions,
        gate: Sequence[str],
        approval: Gates,
    ) -> None:
        super().__init__(visit, past, KIND, approval)
        self._options, self._gated_tools = options, gate
        # The worker that stored them may have run in another folder.
        project = {"project_key": project_key_for_directory(options.cwd)}
        rows = visit.messages if past.session else ()
        self._store = DocumentStore([{**row, "key": {**row["key"], **project}} for row in rows])
        self._verdicts: dict[str, JSONObject] = {}

    async def run(self, make: Callable[[Visit], str]) -> Outcome:
        """Continue from the stored document."""
        while True:
            prompt = None
            if self._past.call is None:
                prompt = await async_loop.in_thread(make, self._visit)
            else:
                question = await async_loop.in_thread(self._ask)
                if open_questions := self._unanswered([question]):
                    return Interrupted(open_questions, self._saved(), self._past.usage)
                verdict = await self._decide(question)
                self._verdicts = {"hook": verdict, "request": verdict}
            result = await self._invoke(prompt)
            call = result.deferred_tool_use
            self._past.begun = True
            self._past.session = result.session_id
            self._past.usage = add_usage(self._past.usage, _counts(result.usage or {}))
            self._past.call = None if call is None else vars(call)
            if call is None:
                output = result.structured_output
                output = result.result if output is None else output
                return Succeeded(*packed(output), self._past.usage, self._saved())

    async def _invoke(self, prompt: str | None) -> Any:
        end = asyncio.Event()

        async def nothing() -> AsyncIterator[Any]:
            """Keep the input open, because Claude Code receives the decision through it."""
            await end.wait()
            return
            yield

        hooks: Any = dict(self._options.hooks or {})
        ours = HookMatcher(hooks=[self._hook], on_failure="block")
        hooks["PreToolUse"] = [ours, *hooks.get("PreToolUse", ())]
        options = replace(
            self._options,
            allowed_tools=[],
            can_use_tool=self._request,
            hooks=hooks,
            permission_mode=self._options.permission_mode or "default",
            resume=self._past.session if prompt is None else None,
            session_store=self._store,
            settings=_settings(self._options, self._gated_tools),
        )
        result = None
        messages = query(prompt=nothing() if prompt is None else prompt, options=options)
        try:
            async with aclosing(messages):
                async for message in messages:
                    self._visit.check()
                    if isinstance(message, ResultMessage):
                        result = message
                        end.set()
        except Exception:
            if self._stopped is None:
                raise
        if self._stopped:
            raise self._stopped
        if result is None or result.is_error:
            reason = result and (result.result or result.errors or result.stop_reason)
            raise NodeFailed(
                f"Claude Code ended with an error: {reason or 'there was no result'}."
            )
        return result

    # -- calls of tools -----------------------------------------------------------------------------

    async def _hook(self, call: Any, call_id: str | None, context: object) -> Any:
        """Refuse frozen tools and any call of a lost visit; defer gated calls."""
        del context
        name = call["tool_name"]
        output = {"permissionDecision": "deny"}
        try:
            self._visit.check()
            await async_loop.in_thread(self._visit.check_effect, name)
        except Exception as error:  # noqa: BLE001 - raised where Claude Code has ended
            self._stopped = error
        else:
            if name not in self._gated_tools:
                return {}
            if not await self._needs_decision(name, call["tool_input"]):
                permission = {"hookEventName": "PreToolUse", "permissionDecision": "allow"}
                return {"hookSpecificOutput": permission}
            verdict = self._verdict("hook", call_id, name, call["tool_input"])
            refusal = {**output, "permissionDecisionReason": ALONE}
            output = verdict or (
                refusal if call.get("agent_id") else {"permissionDecision": "defer"}
            )
        result = {"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}}
        return {**result, "continue_": False} if self._stopped else result

    async def _request(self, name: str, tool_input: JSONObject, context: Any) -> Any:
        """Answer a permission request with the decision on a gated call, or as the options say."""
        if name not in self._gated_tools:
            if self._options.can_use_tool is None:
                return PermissionResultDeny(message=f"{name} is not allowed here.")
            return await self._options.can_use_tool(name, tool_input, context)
        if not await self._needs_decision(name, tool_input):
            return PermissionResultAllow(updated_input=tool_input)
        verdict = self._verdict("request", context.tool_use_id, name, tool_input) or {}
        if verdict.get("permissionDecision") != "allow":
            return PermissionResultDeny(message=verdict.get("permissionDecisionReason", ALONE))
        return PermissionResultAllow(updated_input=verdict.get("updatedInput", tool_input))

    def _verdict(
        self, channel: str, call_id: str | None, name: str, tool_input: JSON
    ) -> JSONObject | None:
        """Return the decision if it is on exactly this call; hook and request get it once each."""
        verdict: JSONObject = self._verdicts.get(channel, {})
        call = self._past.call or {}
        if (call.get("id"), call.get("name")) != (call_id, name):
            return None
        # A request comes after the hook, with the edited input.
        if tool_input not in (call["input"], verdict.get("updatedInput")):
            return None
        return self._verdicts.pop(channel, None)

    async def _needs_decision(self, name: str, tool_input: JSON) -> bool:
        """Return whether people decide a call of a gated tool, which includes a failing policy."""
        if not self._gate.is_for(name):
            return True
        try:
            return await async_loop.in_thread(self._gate.rule, name, tool_input) is not None
        except Exception as error:  # noqa: BLE001 - raised where Claude Code has ended
            self._stopped = error
            return True

    # -- questions ----------------------------------------------------------------------------------

    def _ask(self) -> Asked:
        name = self._past.call["name"]
        args = self._past.call["input"]
        call = FrameworkCall(
            self._past.call["id"], name, args, decisions=("approve", "edit", "reject")
        )
        return self._gate.ask(call, approval.json_schema())

    async def _decide(self, question: Asked) -> JSONObject:
        """Return the deferred call's decision in Claude Code's form, and use a rule's decision."""
        answers = self._questions.hand_over()
        call = self._past.call
        override: JSON = None
        reason: JSON = None
        match question:
            case None:
                pass
            case str():
                reason = question
            case CallState(approval=ballot, args=args) if ballot is not None:
                if not ballot.approved:
                    reason = str(ballot.response["rejected"] or "")
                else:
                    override = None if args == call["input"] else args
                    await async_loop.in_thread(
                        self._gate.begin, call["name"], args, None, call["id"]
                    )
            case _:
                match approval.validate_python(answers[call["id"]]):
                    case Approved(override_args=override):
                        pass
                    case Denied(message=reason):
                        pass
                    case False:
                        reason = ""
        if reason is not None:
            reason = reason or "The tool call was denied."
            return {"permissionDecision": "deny", "permissionDecisionReason": reason}
        await async_loop.in_thread(self._visit.check_effect, call["name"])
        edit = {} if override is None else {"updatedInput": override}
        return {"permissionDecision": "allow", **edit}

    def _saved(self) -> Saved:
        return self._messages.saved(self._state(), self._store.rows)


def _checked(options: Any) -> ClaudeAgentOptions:
    """Refuse options that could let a gated call run without a decision.

    Raises:
        DefinitionError: the options have one, or their settings can't be read.
    """
    conflicts = [name for name in RESERVED if getattr(options, name)]
    if options.permission_mode not in (None, "default", "plan", "acceptEdits"):
        conflicts.append(f"permission_mode={options.permission_mode!r}")
    sandbox: Any = options.sandbox or _read_settings(options).get("sandbox")
    if sandbox and sandbox.get("autoAllowBashIfSandboxed", True):
        conflicts.append("a sandbox without autoAllowBashIfSandboxed=False")
    conflicts += [
        f"--{flag}" for flag in options.extra_args if "permission" in flag or flag == "settings"
    ]
    if conflicts:
        raise DefinitionError(
            f"the options of a ClaudeAgent have {', '.join(conflicts)}, so nothing was run: the node keeps "
            "sessions and decides on gated calls itself. Leave that out."
        )
    return options


def _read_settings(options: ClaudeAgentOptions) -> dict[str, Any]:
    """Return the settings of the options, with lists of rules.

    Raises:
        DefinitionError: the settings can't be read.
    """
    text = (options.settings or "{}").strip()
    try:
        if not text.startswith("{"):
            # Claude Code reads a file from its folder, with or without a BOM.
            text = (Path(options.cwd or "") / text).read_text("utf-8-sig")
        settings = {**json.loads(text)}
        rules = {**settings.get("permissions", {})}
        lists = {name: [*rules.get(name, ())] for name in ("ask", "allow")}
    except (OSError, ValueError, TypeError) as error:
        raise DefinitionError(
            f"the settings {options.settings!r:.200} of a ClaudeAgent can't be read, so nothing was run: "
            f"{error}. Give a JSON object, or a file with one."
        ) from error
    return {**settings, "permissions": {**rules, **lists}}


def _settings(options: ClaudeAgentOptions, gate: Sequence[str]) -> str:
    """Return the settings with an ask rule for each gated tool, which overrides an allow rule."""
    settings = _read_settings(options)
    settings["permissions"]["ask"] += gate
    settings["permissions"]["allow"] += options.allowed_tools
    return json.dumps(settings)


def _counts(usage: JSONMapping) -> dict[str, int]:
    names = (
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    )
    tokens, output, cache_reads, cache_writes = (usage.get(name) or 0 for name in names)
    return usage_of(
        inputTokens=tokens,
        outputTokens=output,
        totalTokens=tokens + output + cache_reads + cache_writes,
        cacheReadInputTokens=cache_reads,
        cacheWriteInputTokens=cache_writes,
    )
