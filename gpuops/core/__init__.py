"""Types, errors, context, settings, platform, polling: what every other room stands on."""
