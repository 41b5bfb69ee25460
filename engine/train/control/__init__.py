"""Control of a trainer: commands, settings, and the interfaces of trainer and profiler."""
