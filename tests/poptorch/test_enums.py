"""The enumerations: members and values as PopTorch documents them."""

from __future__ import annotations

import enum

import pytest

from torchipu import poptorch

MEMBERS = {
    "OutputMode": "Final=0 EveryN=1 All=2 Sum=3 Default=4",
    "DataLoaderMode": "Sync=0 Async=1 AsyncRebatched=2",
    "AutoStage": "SameAsIpu=0 AutoIncrement=1",
    "ReductionType": "Sum=0 Mean=1 NoReduction=2",
    "MatMulSerializationMode":
        "InputChannels=input_channels ReducingDim=reducing_dim OutputChannels=output_channels Disabled=none",
    "SharingStrategy": "SharedMemory=0 FileSystem=1 Fork=2 ForkServer=3",
    "ConnectionType": "Always=0 OnDemand=1 Never=2",
    "MeanReductionStrategy": "Running=0 Post=1 PostAndLoss=2",
    "Liveness": "AlwaysLive=0 OffChipAfterFwd=1 OffChipAfterFwdNoOverlap=2 OffChipAfterEachPhase=3",
    "OverlapMode":
        "NoOverlap=no_overlap OverlapAccumulationLoop=overlap_accumulation_loop "
        "OverlapDeviceIterationLoop=overlap_device_iteration_loop",
    "MultiConvPlanType": "Parallel=0 Serial=1",
    "SyncPattern": "Full=0 SinglePipeline=1 ReplicaAndLadder=2",
    "CommGroupType": "All=0 Consecutive=1 Orthogonal=2 NoGrouping=3",
    "VariableRetrievalMode": "OnePerGroup=0 AllReplicas=2",
    "HalfFloatCastingBehavior": "FloatDowncastToHalf=0 HalfUpcastToFloat=1 Default=2",
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_and_values(name: str) -> None:
    kind = getattr(poptorch, name)
    assert getattr(poptorch.enums, name) is kind
    assert " ".join(f"{member.name}={member.value}" for member in kind) == MEMBERS[name]
    plain = name in ("MatMulSerializationMode", "OverlapMode")
    assert issubclass(kind, enum.IntEnum) is not plain


def test_anchor_mode_is_the_old_name_of_output_mode() -> None:
    assert poptorch.AnchorMode is poptorch.OutputMode
