"""The screens of the app, one module each, with their dialogs and the handlers of actions."""
