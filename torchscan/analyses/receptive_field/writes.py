"""Writing into a part of a tensor: what it sees afterwards, there and elsewhere."""

from __future__ import annotations

from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.pieces import united
from torchscan.analyses.receptive_field.sights import Glance, Sight, follow, only
from torchscan.ops.windows import HERE, Along, At, Look, Piece, Taps, Way, shifted

#: along each dimension of what is written into: from where, how many places, how far apart
Region = tuple[tuple[int, int, int], ...]


def region_of(look: Look) -> Region | None:
    """The part of a tensor that a view shows; None if it isn't just slices and single places."""
    region: list[tuple[int, int, int]] = []
    for how in look.dims:
        if isinstance(how, At):
            region.append((how.index, 1, 1))
        elif (
            isinstance(how, Along)
            and len(how.taps.table) == 1
            and len(how.taps.table[0]) == 1
            and how.taps.rise > 0
        ):
            region.append((how.taps.table[0][0], look.shape[how.dim], how.taps.rise))
        else:
            return None
    shown = [how.dim for how in look.dims if isinstance(how, Along)]
    if len(set(shown)) < len(shown):
        return None  # a diagonal
    return (
        None
        if any(size > 1 and dim not in shown for dim, size in enumerate(look.shape))
        else tuple(region)
    )


def put_back(
    new: Sight | None, old: Sight | None, look: Look, region: Region, shape: Shape, glance: Glance
) -> Sight | None:
    """``new`` where the region is, ``old`` elsewhere."""
    partial = [
        dim
        for dim, (start, count, step) in enumerate(region)
        if (start, count, step) != (0, shape[dim], 1)
    ]
    if not partial:
        old = None
    single = partial[0] if len(partial) == 1 else None
    parts: list[tuple[Piece | None, Sight]] = []
    if new is not None:
        aligned = {single} if single is not None and region[single][2] == 1 else set()
        back = _back(look, region, shape, aligned)
        piece = (
            Piece(single, region[single][0], sum(region[single][:2]))
            if single in aligned and single is not None
            else None
        )
        parts.append(follow(new, look.shape, Way((back, piece) if piece else (back,)), glance))
    if old is None:
        return united(parts, shape, glance.size) if parts else None
    if single is None:
        return united(
            [
                *parts,
                (
                    None,
                    Sight(
                        low=old.low,
                        high=old.high,
                        reasons=old.reasons,
                        notes=old.notes | only("hull"),
                    ),
                ),
            ],
            shape,
            glance.size,
        )
    return united([*parts, *_rest(old, single, region[single], shape, glance)], shape, glance.size)


def _back(look: Look, region: Region, shape: Shape, aligned: set[int]) -> Look:
    """From the view to its base."""
    sources: dict[int, Along] = {}
    for dim, (how, (start, _, step)) in enumerate(zip(look.dims, region, strict=True)):
        if isinstance(how, Along):
            sources[how.dim] = Along(dim, HERE if dim in aligned else _inverse(start, step))
    rank = len(look.shape)
    return Look(tuple(sources.get(dim, At(0)) for dim in range(rank)), shape)


def _inverse(start: int, step: int) -> Taps:
    if step == 1:
        return shifted(-start)
    return Taps(
        tuple(
            ((place - start) // step,) if (place - start) % step == 0 else ()
            for place in range(step)
        ),
        1,
    )


def _rest(
    old: Sight, dim: int, where: tuple[int, int, int], shape: Shape, glance: Glance
) -> list[tuple[Piece | None, Sight]]:
    """Return the old content beside a region along one dimension."""
    start, count, step = where
    stop = start + (count - 1) * step + 1
    parts: list[tuple[Piece | None, Sight]] = [(Piece(dim, 0, start), old)] if start else []
    if step > 1:
        others = Taps(
            tuple(() if (place - start) % step == 0 else (place,) for place in range(step)), step
        )
        parts.append(follow(old, shape, Way((_along(dim, others, shape),)), glance))
    if stop < shape[dim]:
        parts.append(
            follow(
                old,
                shape,
                Way((_along(dim, shifted(stop), shape), Piece(dim, stop, shape[dim]))),
                glance,
            )
        )
    return parts


def _along(dim: int, taps: Taps, shape: Shape) -> Look:
    return Look(tuple(Along(at, taps if at == dim else HERE) for at in range(len(shape))), shape)
