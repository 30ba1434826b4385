"""Two Ray nodes on loopback until stdin is closed; `kill` on stdin ends the second at once, `kill all` the cluster.

The first line on stdout is the address. Ray stays in this process: what it does to signals and warnings, it does here.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_initial_delay_ms": "0"}
os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}


def main(cores: int) -> None:
    from ray.cluster_utils import Cluster

    address = {"node_ip_address": "127.0.0.2"}  # Ray takes 127.0.0.1 for a mistake
    small = {"num_cpus": cores, "object_store_memory": 100 << 20, **address}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        for node in [second] if line == "kill\n" else [second, cluster.head_node]:
            for processes in node.all_processes.values():
                for process in processes:
                    process.process.kill()
        print("killed", flush=True)
        if line == "kill all\n":
            os._exit(0)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
