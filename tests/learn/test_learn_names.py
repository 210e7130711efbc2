from paraaegis.learn.data import DATASETS
from paraaegis.learn.models import MODELS
from paraaegis.learn.names import DATASET_NAMES, MODEL_NAMES


def test_the_names_are_those_of_the_registries():
    assert tuple(DATASETS) == DATASET_NAMES
    assert tuple(MODELS) == MODEL_NAMES
