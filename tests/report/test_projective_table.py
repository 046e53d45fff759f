"""Projective fields as data, as a table and on the command line."""

from __future__ import annotations

import json

import pytest
from torch import nn

from torchscan import InputError, projective_field


def test_as_plain_data_and_as_a_table_it_has_each_layer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (3, 5), 2), nn.MaxPool2d(2, 3))
    field = projective_field(model, (3, 15, 17))
    data = field.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert [layer["path"] for layer in data["layers"]] == ["", "0", "1"]
    down, across = data["layers"][1]["outputs"][0]
    assert (down["size"], down["units"], across["size"], across["units"]) == (2, 7, 3, 7)

    header, *rows = field.table().to_csv().splitlines()
    assert header == "path,size,units,unused,bound"
    assert rows[1] == '0,"[2, 3]",7,0,[]'
    at = field.table(position=(4, 4))
    assert "3, 0…2" not in at.to_text()
    assert "1…2, 0…2" in at.to_text()
    assert field.table(layer="1").to_csv().splitlines()[0].startswith("output,input,axis,status")
    assert repr(field).startswith("<ProjectiveField at 3 layer calls")


def test_a_wrong_position_says_which_there_are() -> None:
    field = projective_field(nn.Conv2d(1, 1, 3), (1, 9, 8))
    with pytest.raises(InputError, match="position is 8: give a whole number, 0 to 7"):
        field.output.reaches(0, 8)
    with pytest.raises(InputError, match=r"give 2 numbers, one for each spatial axis of args\[0\]"):
        field.output.reaches(1)
    with pytest.raises(InputError, match="no layer 'x' was called"):
        field["x"]
