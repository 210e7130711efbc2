"""Clients have names that files can have, as many as there are clients."""

import pytest

from paraaegis.config import make_config
from refusals import outcome, refusal


def test_clients_are_ten_or_as_many_as_are_told_or_named():
    assert make_config({}).names == tuple(f"client-{index}" for index in range(10))
    assert make_config({}, ["federation.clients=2"]).names == ("client-0", "client-1")
    named = make_config({}, ["federation.names=['hospital-a', 'hospital-b']"])
    assert (named.names, named.federation.clients) == (("hospital-a", "hospital-b"), 2)
    assert make_config({}, ["federation.names=['hospital-a', 'hospital-b']", "federation.clients=2"]) == named


def test_a_number_of_clients_that_is_not_that_of_the_names_is_refused():
    message = refusal("federation.names=['a', 'b']", "federation.clients=3")
    assert "federation.clients is 3, but federation.names lists 2 (a, b)" in message


@pytest.mark.parametrize("name", ["", ".", "..", "-", "-a", "_", "a b", "a/b", "a\n", "server", "Server", "A"])
def test_what_no_file_could_be_called_or_another_is_called_is_no_name(name):
    assert outcome(lambda: make_config({"federation": {"names": ["a", name]}})).startswith("federation.names: ")


@pytest.mark.parametrize("name", ["hospital-b", "b", "7", "st.mary_2", "Charité"])
def test_letters_digits_and_three_signs_make_a_name(name):
    assert make_config({"federation": {"names": ["a", name]}}).names == ("a", name)
