"""Chat messages to prompt text, with the template that a model file carries."""

from __future__ import annotations


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source : str
        The jinja2 template (``tokenizer.chat_template``). It is run in a sandbox: it can neither reach the
        interpreter, nor change its input, nor run or grow without bound.
    bos_token, eos_token : str
        Text of these tokens, for the template to use.

    Raises
    ------
    ImportError
        If the ``jinja2`` package is missing.
    TypeError
        If ``source`` is not a str.
    ValueError
        If the template is not valid.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = ""):
        if not isinstance(source, str):
            raise TypeError(f"a chat template must be a str, got {type(source).__name__}")
        try:
            from .sandbox import Sandbox
        except ImportError as error:
            raise ImportError("chat templates need the jinja2 package: pip install 'fucina[llm]'") from error
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # jinja2 may fail in Python's own compiler as well
            raise ValueError(f"the chat template is not valid: {error}") from None

    def render(self, messages, add_generation_prompt: bool = True, **variables) -> str:
        """The prompt text for ``messages``.

        Parameters
        ----------
        messages : list of dict
            ``{"role": "system" | "user" | "assistant" | ..., "content": str, ...}``, oldest first.
        add_generation_prompt : bool
            End with the start of the assistant's answer.
        **variables
            More variables for the template (``tools``, ``enable_thinking``, ...).

        Raises
        ------
        TypeError
            If ``messages`` is not a list of dicts with a ``role``.
        ValueError
            If the template refuses the messages, fails, or does not come to an end.
        """
        from .sandbox import MAX_STEPS

        if not isinstance(messages, (list, tuple)) or not all(isinstance(m, dict) for m in messages):
            raise TypeError(f"messages must be a list of dicts, got {messages!r:.80}")
        for message in messages:
            if not isinstance(message.get("role"), str):
                raise TypeError(f"a message needs a role (a str), got {message!r:.80}")
        variables = {**self._tokens, **variables}
        variables |= {"messages": list(messages), "add_generation_prompt": bool(add_generation_prompt)}
        try:
            # Work that grows with the conversation is no fault of the template.
            steps = MAX_STEPS + len(str(variables)) + 1000 * len(messages)
            return self._sandbox.run(self._template, variables, steps)
        except Exception as error:  # the template is a program: it may fail in any way
            raise ValueError(f"the chat template failed: {error or type(error).__name__}") from None


def template_of(metadata, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
    """The chat template of a GGUF file's metadata; ValueError if it has none."""
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        raise ValueError("the model file has no chat template (tokenizer.chat_template)")
    if not isinstance(source, str):
        raise ValueError(f"tokenizer.chat_template must be a string, got {type(source).__name__}")
    return ChatTemplate(source, bos_token, eos_token)
