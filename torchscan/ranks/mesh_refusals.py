"""The meshes of a search that are not possible, with the reasons."""

from __future__ import annotations

from torchscan.analyses.mesh_layout import MeshLayout, format_mesh
from torchscan.errors import Argument, InputError, TorchscanError
from torchscan.notes import Note


class Refusals:
    """The meshes that are left out, and why."""

    def __init__(self) -> None:
        #: the reason by mesh
        self.reasons: dict[str, Note] = {}
        self._errors: list[TorchscanError] = []

    def add(self, layout: MeshLayout, error: TorchscanError) -> None:
        """Leave out a mesh, on which a step raises an error."""
        self.reasons[format_mesh(layout.mesh)] = Note.of("mesh-refused", error=error.problem)
        self._errors.append(error)

    def add_slow(self, layout: MeshLayout, factor: float) -> None:
        """Leave out a mesh, whose steps take at least ``factor`` times as long as the best."""
        self.reasons[format_mesh(layout.mesh)] = Note.of("mesh-slow", factor=factor)

    def explain(self) -> TorchscanError:
        """Return the error if no mesh is possible. If an option is wrong for all, it is about that.

        Such an error begins with the name of the option.
        """
        if not self._errors:
            return InputError("no mesh is possible: there is none to compare")
        first, *others = self._errors
        is_of_option = isinstance(first.parts[0], Argument)
        if is_of_option and all(each.problem == first.problem for each in others):
            return first
        return InputError("no mesh is possible: ", first)
