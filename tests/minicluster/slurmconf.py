"""slurm.conf, gres.conf, cgroup.conf: one set per cluster, in its own directory. Pure."""

from tests.minicluster.spec import Spec

CGROUP_MOUNT = "/run/slurm-cgroup"


def slurm_conf(spec: Spec) -> str:
    directory = spec.root
    return f"""\
ClusterName={spec.name}
SlurmctldHost=login({spec.address("login")})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits; 120 otherwise
AuthInfo=socket={spec.munge_socket},cred_expire=15
StateSaveLocation={directory}/spool/slurmctld
SlurmdSpoolDir={directory}/nodes/%n/spool
SlurmctldPidFile={directory}/spool/slurmctld.pid
SlurmdPidFile={directory}/nodes/%n/slurmd.pid
SlurmctldLogFile={spec.log("slurmctld")}
SlurmdLogFile={directory}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
SwitchType=switch/none
MpiDefault=none
# Steps are killed as on a cluster: all that is in the step's cgroup
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
# A node claims more cores than this machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={max(spec.memory_mb // spec.cores, 1)}
GresTypes=gpu
# Jobs start at once: no collecting of submissions, a scheduler that looks often
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
MinJobAge=300
KillWait={spec.kill_wait}
SlurmdTimeout={spec.slurmd_timeout}
SlurmctldTimeout=10
TCPTimeout=2
MessageTimeout=10
BatchStartTimeout=10
InactiveLimit=0
Waittime=0
UnkillableStepTimeout=30
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-{spec.nodes}] NodeAddr={node_addresses(spec)} {node_size(spec)} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=24:00:00 DefaultTime=02:00:00 PriorityTier=1 GraceTime=0 State=UP
PartitionName=urgent Nodes=ALL MaxTime=24:00:00 DefaultTime=02:00:00 PriorityTier=10 PreemptMode=OFF State=UP
"""


def node_size(spec: Spec) -> str:
    cores = f"CPUs={spec.cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={spec.cores} ThreadsPerCore=1"
    return f"{cores} RealMemory={spec.memory_mb}" + (f" Gres=gpu:p100:{spec.gpus}" if spec.gpus else "")


def node_addresses(spec: Spec) -> str:
    first = spec.address("n1")
    return f"{first.rsplit('.', 1)[0]}.[1-{spec.nodes}]" if spec.nodes > 1 else first


def gres_conf(spec: Spec) -> str:
    if not spec.gpus:
        return ""
    files = f"/dev/nvidia[0-{spec.gpus - 1}]" if spec.gpus > 1 else "/dev/nvidia0"
    return f"Name=gpu Type=p100 File={files}\n"


def cgroup_conf() -> str:
    constraints = "".join(f"Constrain{what}=no\n" for what in ("Cores", "RAMSpace", "Devices"))
    return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUP_MOUNT}\nCgroupAutomount=no\n{constraints}"


def environ(spec: Spec) -> dict[str, str]:
    return {"SLURM_CONF": str(spec.slurm_conf)}
