"""Asks for the prompt of a chat, or for a setting of the chat, and sends the prompt."""

from __future__ import annotations

from dataclasses import replace

from ...app_base import AppBase
from ...dialogs.chat_input import read_chat, with_setting
from ...dialogs.prompts import ParsedInput
from ..modals.prompt import PromptScreen


def ask_chat(app: AppBase) -> None:
    """Ask for a prompt and send it; a setting is kept for the next prompt, which is then asked."""

    def answer(found: ParsedInput | None) -> None:
        if found is not None and found.command is not None:
            app.send(found.command)
            app.go("chat")
        elif found is not None and found.text is not None:
            draft = with_setting(app.state.chat, found.text, app.state.run.chats)
            app.state = replace(app.state, chat=draft)
            ask_chat(app)

    forms = "What is a checkpoint?   / lists the settings"
    read = PromptScreen("chat", forms, lambda text: read_chat(text, app.state), app.count)
    app.push_screen(read, answer)
