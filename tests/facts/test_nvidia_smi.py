from pathlib import Path

import pytest

from hosts.facts.nvidia_smi import MIB, parse_query_csv, parse_query_xml, read_value

SAMPLES = Path(__file__).parent / "samples"
FIELDS = [
    "uuid",
    "index",
    "name",
    "memory.total",
    "memory.used",
    "mig.mode.current",
    "power.limit",
    "driver_version",
]


class TestReadValue:
    @pytest.mark.parametrize(
        "text",
        ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU is lost]", "", None, " [n/a] "],
    )
    def test_gives_none_where_the_driver_had_nothing_to_say(self, text):
        assert read_value(text) is None

    def test_keeps_everything_else(self):
        assert read_value(" NVIDIA H200 ") == "NVIDIA H200"


class TestParseQueryCsv:
    def test_reads_a_gpu(self):
        text = "GPU-1, 0, NVIDIA H200, 143771, 14977, Disabled, 700.00, 580.159.04\n"
        reading = parse_query_csv(text=text, fields=FIELDS)
        (device,) = reading.devices
        assert (device.uuid, device.kind, device.index, device.name) == ("GPU-1", "gpu", 0, "NVIDIA H200")
        assert (device.memory_total, device.memory_used) == (143771 * MIB, 14977 * MIB)
        assert (device.mig_enabled, device.power_limit_w) == (False, 700.0)
        assert (reading.driver, reading.problems) == ("580.159.04", ())

    def test_reads_absent_values_as_none_and_never_as_zero(self):
        text = "GPU-1, 0, NVIDIA T4, [N/A], [Not Supported], [N/A], ERR!, 470.1\n"
        (device,) = parse_query_csv(text=text, fields=FIELDS).devices
        absent = (device.memory_total, device.memory_used, device.mig_enabled, device.power_limit_w)
        assert absent == (None, None, None, None)

    def test_reads_values_with_units_too(self):
        fields = ["index", "uuid", "name", "memory.total", "memory.used"]
        row = (SAMPLES / "h200-query-gpu-with-units.csv").read_text().splitlines()[1]
        (device,) = parse_query_csv(text=",".join(row.split(",")[:5]), fields=fields).devices
        assert device.uuid == "GPU-4c42802a-ce50-e1e3-c7d9-71739d44943b"
        assert device.memory_total == 143771 * MIB

    def test_keeps_good_lines_beside_bad_ones_and_says_so(self):
        text = "Unable to determine the device handle for GPU0000:06:00.0: Unknown Error\n"
        text += "GPU-2, 1, A100, 81920, 0, Enabled, 400, 1\n\n"
        reading = parse_query_csv(text=text, fields=FIELDS)
        assert [device.uuid for device in reading.devices] == ["GPU-2"]
        assert reading.devices[0].mig_enabled is True
        assert "Unable to determine" in reading.problems[0]

    def test_does_not_read_more_than_its_bound(self):
        reading = parse_query_csv(text="x" * 300_000, fields=FIELDS)
        assert reading.devices == ()
        assert "256 KiB" in reading.problems[0]

    def test_survives_nul_and_quotes(self):
        reading = parse_query_csv(text='"GPU-1\0", 0, "a, b", 1, 2, x, y, z', fields=FIELDS)
        assert reading.devices[0].name == "a, b"


class TestParseQueryXml:
    def test_reads_the_recorded_h200(self):
        reading = parse_query_xml((SAMPLES / "h200-nvidia-smi-q.xml").read_text())
        (device,) = reading.devices
        assert (reading.driver, reading.cuda) == ("580.159.04", "13.0")
        assert (device.uuid, device.name) == ("GPU-36c1d6f5-a8c8-9780-4f27-b46e2bac854f", "NVIDIA H200")
        assert (device.memory_total, device.memory_used, device.memory_reserved) == (
            143771 * MIB,
            0,
            616 * MIB,
        )
        assert device.mig_enabled is False
        assert device.power_limit_w == 700.0
        assert reading.problems == ()

    def test_reads_slices_that_have_a_uuid_and_names_those_without(self):
        text = """<nvidia_smi_log><gpu id="0:1"><uuid>GPU-1</uuid><product_name>A100</product_name>
        <mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>
        <mig_device><index>0</index><uuid>MIG-a</uuid>
        <fb_memory_usage><total>9856 MiB</total></fb_memory_usage></mig_device>
        <mig_device><index>1</index></mig_device></mig_devices></gpu></nvidia_smi_log>"""
        reading = parse_query_xml(text)
        assert [(device.uuid, device.kind) for device in reading.devices] == [
            ("GPU-1", "gpu"),
            ("MIG-a", "mig"),
        ]
        assert reading.devices[0].mig_enabled is True
        assert reading.devices[1].memory_total == 9856 * MIB
        assert reading.devices[1].parent == "GPU-1"
        assert "MIG device 1" in reading.problems[0]

    @pytest.mark.parametrize(
        "text",
        [
            '<!DOCTYPE a [<!ENTITY x "y">]><nvidia_smi_log>&x;</nvidia_smi_log>',
            '<!DOCTYPE a [\n<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log/>',
            "<nvidia_smi_log><gpu>",
            "",
            "not xml",
            "<a>" * 100_000,
            "<nvidia_smi_log>" + "x" * (4 * 1024 * 1024) + "</nvidia_smi_log>",
        ],
        ids=["entity", "external entity", "cut off", "empty", "text", "deep", "large"],
    )
    def test_refuses_hostile_and_broken_xml_in_one_sentence(self, text):
        reading = parse_query_xml(text)
        assert reading.devices == ()
        assert len(reading.problems) == 1
