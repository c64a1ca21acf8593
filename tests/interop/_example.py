"""What a user brings, from the example: data, training in NumPy, public numbers."""

import importlib.util
import pathlib

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "flower_app"


def task():
    spec = importlib.util.spec_from_file_location("digits_task", FOLDER / "digits" / "task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
