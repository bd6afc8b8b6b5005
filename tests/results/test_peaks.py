"""Peaks as shipped and as a user changes them: figures in stored units, their sources, and errors of one line."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.peaks import FIGURES, read_peaks

NEEDED = ("hbm_rate", "bf16", "sms", "sm_clock")  # what a projection scales by


@pytest.fixture
def read(tmp_path):
    """Read the shipped peaks with a file of this text over them."""

    def with_text(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return read_peaks(file)

    return with_text


def test_every_device_has_what_a_projection_needs():
    peaks = read_peaks()
    assert list(peaks.devices) == ["h100", "h200", "b200", "gb200", "b300", "gb300"]
    assert [(one.word, name) for one in peaks.devices.values() for name in NEEDED if name not in one.figures] == []
    assert {one.word: one.host for one in peaks.devices.values() if one.host != "x86"} == {
        "gb200": "grace",
        "gb300": "grace",
    }
    assert peaks.hosts["x86"].value == 1


def test_every_figure_says_where_it_is_from_and_of_when():
    figures = [figure for one in read_peaks().devices.values() for figure in one.figures.values()]
    figures += read_peaks().hosts.values()
    assert all(figure.source and figure.date[:2] == "20" for figure in figures)


# dense figures of one GPU, from those that vendors give with sparsity or for a whole board or rack
@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("h200", "hbm_rate", 4.8e12),
        ("h200", "bf16", 4096 * 132 * 1.83e9),  # FLOPs a cycle and SM, SMs, the clock of the datasheet
        ("b200", "bf16", 36e15 / 2 / 8),
        ("b300", "fp4", 108e15 / 8),
        ("gb300", "bf16", 360e15 / 2 / 72),
        ("gb300", "fp8", 720e15 / 2 / 72),
        ("gb300", "hbm_rate", 576e12 / 72),
        ("b300", "hbm_rate", 7680 / 8 * 7.992e9),  # bits of the bus, rate of a pin
        ("h200", "l2_size", 60 * 2**20),
        ("b300", "sm_clock", 2.032e9),
        ("gb300", "power", 1400),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_dense_and_of_one_gpu(word, name, value):
    assert read_peaks().device(word).value(name) == pytest.approx(value, rel=0.004)


def test_a_gpu_is_found_by_what_its_driver_calls_it():
    peaks = read_peaks()
    assert peaks.of_machine("NVIDIA B300 SXM6 AC").word == "b300"
    assert peaks.device("GB300").word == "gb300"
    with pytest.raises(UsageError, match=r"NVIDIA A100: no peaks of this GPU; name it under `names` in --peaks FILE"):
        peaks.of_machine("NVIDIA A100")
    with pytest.raises(UsageError, match=r"--to gb30: no such device \(did you mean 'gb300'\?\); known: h100, h200"):
        peaks.device("gb30")


def test_a_file_of_ones_own_replaces_figure_by_figure(read):
    peaks = read(
        '[device.b300]\nhbm_rate = "7.2 TB/s"\nsms = 150\n[device.h200]\nnames = ["NVIDIA H200", "H200 NVL"]\n'
    )
    mine = peaks.device("b300")
    assert (mine.value("hbm_rate"), mine.value("sms"), mine.value("bf16")) == (7.2e12, 150, 2.25e15)
    assert (mine.figures["hbm_rate"].source, mine.figures["bf16"].source[:10]) == ("mine.toml", "NVIDIA HGX")
    assert mine.names == ("NVIDIA B300 SXM6 AC", "NVIDIA B300")
    assert peaks.of_machine("H200 NVL").word == "h200"


def test_a_file_of_ones_own_adds_devices_and_hosts(read):
    peaks = read(
        '[host.vera]\nsubmit_ratio = { value = "1.5", source = "a guess", date = "2026-12" }\n'
        '[device.r100]\nhost = "vera"\nhbm_rate = "13TB/s"\nbf16 = "8 PFLOP/s"\nsms = 224\nsm_clock = "2.4 GHz"\n'
    )
    new = peaks.device("r100")
    assert (new.value("hbm_rate"), new.cycles_per_s, new.names) == (13e12, 224 * 2.4e9, ())
    assert (peaks.hosts["vera"].value, peaks.hosts["vera"].source) == (1.5, "a guess")
    with pytest.raises(
        UsageError, match=r'peaks of r100: no figure power; expected it in --peaks FILE, as power = "8 W"'
    ):
        new.value("power")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[devices.b300]", r"no key 'devices' \(did you mean 'device'\?\); known: device, host"),
        ("[device]\nb300 = 3", r"device: expected tables such as \[device\.b300\]"),
        ('[device.b300]\nhbm_rat = "8 TB/s"', r"device\.b300: no key 'hbm_rat' \(did you mean 'hbm_rate'\?\)"),
        ('[device.b300]\nhbm_rate = "8 TB"', r"'8 TB': expected a number of TB/s or GB/s \(did you mean 'TB/s'\?\)"),
        ('[device.b300]\nhbm_rate = "8 tb/s"', r"'8 tb/s': .*\(did you mean 'TB/s'\?\)"),
        ('[device.b300]\nhbm_rate = "fast TB/s"', r"'fast TB/s': expected a number of TB/s or GB/s"),
        ("[device.b300]\nhbm_rate = 8", r"'8': expected a number of TB/s or GB/s$"),
        ('[device.b300]\nsms = "148 SMs"', r"sms: '148 SMs': expected a plain number"),
        ('[device.b300]\nbf16 = "0 TFLOP/s"', r"'0 TFLOP/s': expected more than 0"),
        ('[device.b300]\nbf16 = "inf TFLOP/s"', r"'inf TFLOP/s': expected a number of TFLOP/s or"),
        ("[device.b300]\nbf16 = true", r"bf16: expected a text such as .* found True"),
        ('[device.b300]\nbf16 = { value = "2 PFLOP/s", sorce = "x" }', r"no key 'sorce' \(did you mean 'source'\?\)"),
        ('[device.b300]\nbf16 = { source = "x" }', r"bf16: expected a text such as"),
        ('[device.b300]\nhost = "grase"', r"no such host 'grase' \(did you mean 'grace'\?\)"),
        ("[device.b300]\nhost = 3", r"device\.b300\.host: expected a word, found 3"),
        ('[device.b300]\nnames = "B300"', r"device\.b300\.names: expected a list"),
        ('[device.r100]\nhbm_rate = "13 TB/s"', r'r100: a new device needs its kind of host; expected host = "x86"'),
        ('[host.vera]\nsubmit = "1"', r"host\.vera: no key 'submit' \(did you mean 'submit_ratio'\?\)"),
        ("[device", "not TOML"),
    ],
    ids=["table", "device", "figure", "unit", "case", "number", "no unit", "sms", "zero", "infinite", "kind", "part",
         "no value", "host", "host kind", "names", "new", "host figure", "toml"],
)  # fmt: skip
def test_a_wrong_file_is_one_line_with_what_is_right(read, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        read(text)
    assert str(caught.value).startswith("--peaks ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read: No such file"):
        read_peaks(tmp_path / "none.toml")


def test_every_figure_of_the_file_is_known():
    assert {name for one in read_peaks().devices.values() for name in one.figures} == set(FIGURES)
