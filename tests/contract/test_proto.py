"""The generated code is that of trainer.proto, and trainer.proto has every call of the contract."""

from pathlib import Path

from google.protobuf import descriptor_pb2

from mosaic.contract import proto
from mosaic.contract.proto import trainer_pb2, trainer_pb2_grpc

CALLS = (
    "SubmitRun ListRuns GetRun CancelRun PauseRun ContinueRun DeleteRun WatchRuns Rebuild RegisterWorker "
    "PublishTelemetry StreamTelemetry GetMetrics StreamFrames PublishFrames FetchRun GetHealth"
).split()


def test_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    from grpc_tools import protoc

    folder = Path(proto.__file__).parent
    fresh = tmp_path / "fresh.bin"
    arguments = [
        "protoc",
        f"-Imosaic/contract/proto={folder}",
        f"--descriptor_set_out={fresh}",
        "mosaic/contract/proto/trainer.proto",
    ]
    assert protoc.main(arguments) == 0
    # Descriptors, not texts: the text also names the compiler's version.
    found = descriptor_pb2.FileDescriptorSet.FromString(fresh.read_bytes()).file[0]
    generated = descriptor_pb2.FileDescriptorProto()
    trainer_pb2.DESCRIPTOR.CopyToProto(generated)
    for file in (found, generated):
        file.ClearField("source_code_info")
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
            for nested in message.nested_type:
                for field in nested.field:
                    field.ClearField("json_name")
    assert generated == found, "run: make proto"


def test_every_call_of_the_contract_is_there() -> None:
    service = trainer_pb2.DESCRIPTOR.services_by_name["Trainer"]
    assert service.full_name == "mosaic.trainer.v1.Trainer"
    assert sorted(method.name for method in service.methods) == sorted(CALLS)
    assert all(hasattr(trainer_pb2_grpc.TrainerServicer, name) for name in CALLS)
