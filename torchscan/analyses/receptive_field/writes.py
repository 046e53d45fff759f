"""Writing into a part of a tensor: what it sees afterwards, there and elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.padded_places import is_slice
from torchscan.analyses.receptive_field.pieces import united
from torchscan.analyses.receptive_field.sights import Glance, Sight, follow, only
from torchscan.ops.windows import HERE, Along, At, Look, Piece, Reshape, Taps, Way, shifted

#: along each dimension of what is written into: from where, how many places, how far apart
Region = tuple[tuple[int, int, int], ...]


def region_of(look: Look) -> Region | None:
    """Return the part of a tensor that a view shows.

    None if the view isn't just slices and single places.
    """
    region: list[tuple[int, int, int]] = []
    shown: set[int] = set()
    for how in look.dims:
        if isinstance(how, At):
            region.append((how.index, 1, 1))
            continue
        if not isinstance(how, Along) or not is_slice(how.taps):
            return None
        if how.dim in shown:
            return None  # a diagonal
        shown.add(how.dim)
        region.append((how.taps.table[0][0], look.shape[how.dim], how.taps.rise))
    if any(size > 1 and dim not in shown for dim, size in enumerate(look.shape)):
        return None
    return tuple(region)


@dataclass(frozen=True, slots=True)
class Put:
    """A view that is written to: how it reads what it is a view of, and where."""

    step: Look | Reshape
    region: Region | None
    shape: Shape

    def sight(self, new: Sight | None, old: Sight | None, glance: Glance) -> Sight | None:
        """Return what a view sees along one axis after it was written to."""
        if isinstance(self.step, Look) and self.region is not None:
            return _put_back(new, old, self.step, self.region, self.shape, glance)
        if new is None:
            return None
        _, sight = follow(new, self.step.shape, Way((Reshape(self.shape),)), glance)
        return sight


def _put_back(
    new: Sight | None, old: Sight | None, look: Look, region: Region, shape: Shape, glance: Glance
) -> Sight | None:
    """Return a sight that is ``new`` where the region is, and ``old`` elsewhere."""
    partial = [dim for dim, where in enumerate(region) if where != (0, shape[dim], 1)]
    single = partial[0] if len(partial) == 1 else None
    parts: list[tuple[Piece | None, Sight]] = []
    if new is not None:
        way = _find_way_back(look, region, shape, single)
        parts.append(follow(new, look.shape, way, glance))
    if old is not None and partial:
        if single is None:
            parts.append((None, old._replace(notes=old.notes | only("hull"), inside=())))
        else:
            parts += _rest(old, single, region[single], shape, glance)
    elif new is None:
        return None
    return united(parts, shape, glance.size)


def _find_way_back(look: Look, region: Region, shape: Shape, single: int | None) -> Way:
    """Return the way from the view to its base.

    ``single`` is the only dimension that the view does not show completely.
    """
    piece = None
    if single is not None:
        start, count, step = region[single]
        if step == 1:
            piece = Piece(single, start, start + count)
    sources: dict[int, Along] = {}
    for dim, (how, (start, _, step)) in enumerate(zip(look.dims, region, strict=True)):
        if isinstance(how, Along):
            is_aligned = piece is not None and dim == single
            sources[how.dim] = Along(dim, HERE if is_aligned else _invert(start, step))
    rank = len(look.shape)
    back = Look(tuple(sources.get(dim, At(0)) for dim in range(rank)), shape)
    return Way((back, piece) if piece else (back,))


def _invert(start: int, step: int) -> Taps:
    """Return the taps from a base to its slice, which has nothing at other places."""
    if step == 1:
        return shifted(-start)
    table: list[tuple[int, ...]] = []
    for place in range(step):
        index, remainder = divmod(place - start, step)
        table.append(() if remainder else (index,))
    return Taps(tuple(table), 1)


def _rest(
    old: Sight, dim: int, where: tuple[int, int, int], shape: Shape, glance: Glance
) -> list[tuple[Piece | None, Sight]]:
    """Return the old content beside a region along one dimension."""
    start, count, step = where
    stop = start + (count - 1) * step + 1
    parts: list[tuple[Piece | None, Sight]] = []
    if start:
        parts.append((Piece(dim, 0, start), old))
    if step > 1:
        table: list[tuple[int, ...]] = [(place,) for place in range(step)]
        table[start % step] = ()
        others = _look_along(dim, Taps(tuple(table), step), shape)
        parts.append(follow(old, shape, Way((others,)), glance))
    if stop < shape[dim]:
        after = _look_along(dim, shifted(stop), shape)
        way = Way((after, Piece(dim, stop, shape[dim])))
        parts.append(follow(old, shape, way, glance))
    return parts


def _look_along(dim: int, taps: Taps, shape: Shape) -> Look:
    dims = [Along(each, HERE) for each in range(len(shape))]
    dims[dim] = Along(dim, taps)
    return Look(tuple(dims), shape)
