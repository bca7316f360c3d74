"""Whether anything that was looked at once has changed since."""

import types

import pytest

from kvplan._core import AttributeWatch


def watched():
    """A watch, and the namespace and the class that it watches."""
    space = types.SimpleNamespace(first=object(), second=object())
    cls = type("Watched", (), {"one": 1, "two": object()})
    names = vars(space)
    return AttributeWatch(names, dict(names), [cls]), space, cls


def test_nothing_has_changed():
    watch, space, _ = watched()
    assert not watch.changed()
    space.other = 1  # a name that nobody watches
    assert not watch.changed()


def test_a_name_is_another_object():
    watch, space, _ = watched()
    before = space.first
    space.first = object()
    assert watch.changed()
    space.first = before
    assert not watch.changed()
    del space.second
    assert watch.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda cls: setattr(cls, "one", 2),
        lambda cls: setattr(cls, "three", 3),
        lambda cls: delattr(cls, "two"),
        lambda cls: setattr(cls, "one", type("Equal", (int,), {})(1)),
    ],
)
def test_a_class_has_other_attributes(change):
    watch, _, cls = watched()
    change(cls)
    assert watch.changed()


@pytest.mark.parametrize("through", ["class", "base"])
def test_what_is_put_back_has_not_changed_and_is_watched_on(through):
    space = types.SimpleNamespace(first=object())
    base = type("Base", (), {"zero": object()})
    cls = type("Watched", (base,), {"one": object()})
    watch = AttributeWatch(vars(space), dict(vars(space)), [base, cls])
    changed, name = (cls, "one") if through == "class" else (base, "zero")
    before, first = getattr(changed, name), space.first
    for _ in range(3):
        setattr(changed, name, object())
        assert watch.changed()
        setattr(changed, name, before)
        assert not watch.changed()
        space.first = object()
        assert watch.changed()
        space.first = first
        assert not watch.changed()


def test_a_class_that_was_changed_before_anyone_asked():
    cls = type("Watched", (), {"one": 1})
    watch = AttributeWatch({}, {}, [cls])
    cls.one = 2
    assert watch.changed()


def test_only_classes_are_watched():
    with pytest.raises(TypeError, match="a class is expected"):
        AttributeWatch({}, {}, [1])
