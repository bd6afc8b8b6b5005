from types import SimpleNamespace

import pytest
import torch

from dsv4bench.profiling import clocks
from dsv4bench.profiling.clocks import ClockMonitor, ClockSample, Nvml, open_nvml, read, throttle_flags


class FakeNvml:
    """The package, on one GPU whose readings are given; what is not given is refused, as old GPUs do."""

    class NVMLError(Exception):
        pass

    def __init__(self, **readings):
        self.readings = readings

    def nvmlInit(self):
        if "init" in self.readings:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-12ab"
        return "handle"

    def nvmlSystemGetDriverVersion(self):
        return self._answer("driver")

    def nvmlDeviceGetClockInfo(self, handle, domain):
        return self._answer({1: "sm", 2: "memory"}[domain])

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._answer("power")

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == 0
        return self._answer("temperature")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._answer("reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._answer("processes")

    def _answer(self, name):
        if name not in self.readings:
            raise self.NVMLError("not supported")
        return self.readings[name]


FULL = {"sm": 1980, "memory": 3201, "power": 650_000, "temperature": 61, "reasons": 0x4}


def sample(sm_mhz, *reasons):
    return ClockSample(sm_mhz, 3201, 500_000, 50, reasons)


def test_a_reading_names_its_reasons():
    assert read(Nvml(FakeNvml(**FULL), "handle")) == ClockSample(1980, 3201, 650_000, 61, ("sw_power_cap",))


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [(0, ()), (0x1, ("gpu_idle",)), (0x48, ("hw_slowdown", "hw_thermal_slowdown")), (0x800, ())],
    ids=["none", "idle", "two", "one that this table does not know"],
)
def test_reason_bits(mask, reasons):
    assert read(Nvml(FakeNvml(reasons=mask), "handle")).reasons == reasons


def test_the_older_name_of_the_reasons_is_asked_where_the_new_one_is_missing():
    class Older(FakeNvml):
        nvmlDeviceGetCurrentClocksEventReasons = None

        def __getattribute__(self, name):
            if name == "nvmlDeviceGetCurrentClocksEventReasons":
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
            return 0x8

    assert read(Nvml(Older(), "handle")).reasons == ("hw_slowdown",)


def test_what_the_gpu_does_not_tell_is_none():
    assert read(Nvml(FakeNvml(), "handle")) == ClockSample(None, None, None, None, ())
    assert Nvml(FakeNvml(), "handle").driver_version() is None
    assert Nvml(FakeNvml(driver="580.1"), "handle").driver_version() == "580.1"


def test_a_monitor_keeps_every_reading_and_sums_up_in_plain_values():
    nvml = FakeNvml(**FULL)
    monitor = ClockMonitor(Nvml(nvml, "handle"))
    monitor.sample()
    nvml.readings |= {"sm": 1700, "power": 600_000, "temperature": 70, "reasons": 0x20}
    monitor.sample()
    assert monitor.summary() == {
        "sm_mhz": [1980, 1700],
        "memory_mhz": [3201, 3201],
        "power_mw_max": 650_000,
        "temperature_celsius_max": 70,
        "other_processes": None,
        "reasons": ["sw_power_cap", "sw_thermal_slowdown"],
    }
    assert monitor.flags() == [
        "throttled: sw_power_cap",
        "throttled: sw_thermal_slowdown",
        "throttled: SM clock fell from 1980 to 1700 MHz",
    ]


def test_without_nvml_nothing_is_read_and_nothing_is_claimed():
    monitor = ClockMonitor(None)
    monitor.sample()
    monitor.look_around()
    assert (monitor.samples, monitor.summary(), monitor.flags(), monitor.sm_mhz) == ([], None, [], None)


def test_the_most_processes_of_others_is_kept_and_flagged():
    nvml = FakeNvml(**FULL)
    monitor = ClockMonitor(Nvml(nvml, "handle"))
    seen = []
    for processes in (None, ["own"], ["own", "another", "third"], []):
        nvml.readings |= {} if processes is None else {"processes": processes}
        monitor.look_around()
        seen.append(monitor.other_processes)
    monitor.sample()
    assert seen == [None, 0, 2, 2]
    assert monitor.summary()["other_processes"] == 2
    assert monitor.flags() == ["throttled: sw_power_cap", "other processes on the GPU: 2"]


@pytest.mark.parametrize(
    ("own_threads", "loads", "flags"),
    [
        (1, (1.0, 2.8), ["other load on the CPU: 1.8 of 2 cores"]),
        (1, (3.25, 1.0), ["other load on the CPU: 2.2 of 2 cores"]),
        (2, (1.0, 2.8), ["other load on the CPU: 0.8 of 2 cores"]),
        (1, (0.0, 1.4), []),
        (1, (None, 1.9), ["other load on the CPU: 0.9 of 2 cores"]),
        (1, (None, None), []),
        (None, (9.0, 9.0), []),
    ],
    ids=["in the end", "at the start", "two ranks", "its own", "told once", "not told", "a GPU is timed"],
)
def test_a_cpu_that_does_more_than_this_run_is_flagged(monkeypatch, own_threads, loads, flags):
    said = iter(loads)

    def load_average():
        load = next(said)
        if load is None:
            raise OSError
        return (load, 90.0, 90.0)

    monkeypatch.setattr("os.getloadavg", load_average)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monitor = ClockMonitor(None, own_threads)
    monitor.look_around()
    monitor.look_around()
    assert monitor.flags() == flags


def test_the_sm_clock_alone_is_read_where_nvml_tells():
    assert ClockMonitor(Nvml(FakeNvml(**FULL), "handle")).sm_mhz() == 1980
    assert ClockMonitor(Nvml(FakeNvml(), "handle")).sm_mhz() is None


@pytest.mark.parametrize(
    ("samples", "flags"),
    [
        ([sample(1500)] * 3, []),
        ([sample(2000), sample(1900)], []),
        ([sample(2000), sample(1899)], ["throttled: SM clock fell from 2000 to 1899 MHz"]),
        ([sample(2000), sample(345, "gpu_idle")], []),
        ([sample(2000, "sync_boost"), sample(2000, "hw_power_brake_slowdown")], ["throttled: hw_power_brake_slowdown"]),
        ([sample(None), sample(None)], []),
    ],
    ids=[
        "steadily below nominal is no throttling",
        "within 5 % of the top",
        "further down",
        "idle readings do not count",
        "only reasons that slow down",
        "no clock told",
    ],
)
def test_throttling_is_relative_to_the_runs_own_top_clock(samples, flags):
    assert throttle_flags(samples) == flags


def test_nvml_is_opened_on_torchs_device_by_its_uuid(monkeypatch):
    module = FakeNvml(**FULL)
    monkeypatch.setattr(clocks.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="12ab"))
    nvml = open_nvml()
    assert (nvml.module, nvml.handle) == (module, "handle")


def test_without_the_package_there_is_no_nvml(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(clocks.importlib, "import_module", missing)
    assert open_nvml() is None


def test_without_a_driver_there_is_no_nvml(monkeypatch):
    monkeypatch.setattr(clocks.importlib, "import_module", lambda name: FakeNvml(init="fails"))
    assert open_nvml() is None
