"""The report's part on nats says what was told about records, client by client, and what that
leaves.
"""

import numpy as np

from fljax.accounting.information.spent import Spent
from fljax.simulation.report import information


def spent(clients, **changed):
    nats = np.linspace(1.0, 3.0, clients)
    numbers = {
        "num_records": np.arange(clients) + 5,
        "uses": np.full(clients, 4.0),
        "nats": nats,
        "linear_nats": 2 * nats,
        "label_nats": 0.25,
        "mse": 1 / nats,
        "psnr": 10 + nats,
        "certified": True,
        "reason": "a reason of <theirs>",
        "covariance_source": "declared",
        "mse_certified": False,
        "mse_reason": "no law",
    }
    return Spent(**numbers | changed)


def test_clients_of_whom_most_was_told_come_first_and_nothing_is_called_certified_that_is_not():
    found = spent(25)
    seen = np.zeros((3, 4, 4)), np.ones((3, 4, 4))
    text = information.section(found, [(1, spent(25, nats=found.nats / 2)), (2, found)], seen)
    rows = text[text.index("PSNR at most") :].split("<tr>")[1:]
    assert len(rows) == 20 and "and 5 clients of no more nats" in text
    # A number that bounds from above is rounded up, one that bounds from below down.
    assert rows[0].startswith("<td>24</td><td>29</td><td>4</td><td>3</td><td>6</td><td>0.3333<")
    assert rows[1].startswith("<td>23</td><td>28</td><td>4</td><td>2.917</td>")
    assert "(certified: a reason of &lt;theirs&gt;; covariance: declared)" in text
    assert "error (NOT certified: no law)" in text and "0.25 nats of its label" in text
    assert text.count("<svg") == 2


def test_records_that_are_no_images_are_not_shown():
    found = spent(2, certified=False)
    text = information.section(found, [(1, found)], None)
    assert "(NOT certified: a reason" in text and "clients of no more nats" not in text
    assert text.count("<svg") == 1
