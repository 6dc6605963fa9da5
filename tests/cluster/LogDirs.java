// Asks Kafka's AdminClient: BOOTSTRAP, then any of "T-P-BROKER=/dir" (one request), "T-P-BROKER" (describe).

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeReplicaLogDirsResult.ReplicaLogDirInfo;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartitionReplica;

public class LogDirs {
    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            Map<TopicPartitionReplica, String> asked = new LinkedHashMap<>();
            for (int i = 1; i < args.length; i++) {
                int sign = args[i].indexOf('=');
                if (sign > 0) {
                    asked.put(replica(args[i].substring(0, sign)), args[i].substring(sign + 1));
                }
            }
            if (!asked.isEmpty()) {
                for (Map.Entry<TopicPartitionReplica, KafkaFuture<Void>> one : admin.alterReplicaLogDirs(asked).values().entrySet()) {
                    String said = "done";
                    try {
                        one.getValue().get();
                    } catch (ExecutionException error) {
                        said = error.getCause().getClass().getSimpleName();
                    }
                    System.out.println("moves " + one.getKey() + " " + said);
                }
            }
            for (int i = 1; i < args.length; i++) {
                if (args[i].indexOf('=') < 0) {
                    TopicPartitionReplica wanted = replica(args[i]);
                    ReplicaLogDirInfo found = admin.describeReplicaLogDirs(java.util.List.of(wanted)).values().get(wanted).get();
                    System.out.println("is in " + found.getCurrentReplicaLogDir() + " future " + found.getFutureReplicaLogDir()
                        + " lag " + found.getFutureReplicaOffsetLag());
                }
            }
        }
    }

    private static TopicPartitionReplica replica(String word) {
        int last = word.lastIndexOf('-');
        int first = word.lastIndexOf('-', last - 1);
        return new TopicPartitionReplica(word.substring(0, first), Integer.parseInt(word.substring(first + 1, last)),
            Integer.parseInt(word.substring(last + 1)));
    }
}
