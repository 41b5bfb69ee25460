"""The folder that `fttui exec` puts first on PYTHONPATH; it holds only `sitecustomize`."""
