// Asks Kafka's AdminClient: BOOTSTRAP, then any of "T-P=1,2,3", "T-P=null" (one request), "list".

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;

public class Reassignments {
    public static void main(String[] args) throws Exception {
        Map<TopicPartition, Optional<NewPartitionReassignment>> asked = new LinkedHashMap<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            for (int i = 1; i < args.length; i++) {
                if (!args[i].equals("list")) {
                    String[] words = args[i].split("=");
                    asked.put(place(words[0]), targets(words[1]));
                }
            }
            for (Map.Entry<TopicPartition, KafkaFuture<Void>> one : admin.alterPartitionReassignments(asked).values().entrySet()) {
                String said = "done";
                try {
                    one.getValue().get();
                } catch (ExecutionException error) {
                    said = error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage();
                }
                System.out.println(one.getKey() + " " + said);
            }
            if (args[args.length - 1].equals("list")) {
                Map<String, String> found = new TreeMap<>();
                admin.listPartitionReassignments().reassignments().get().forEach((place, move) ->
                    found.put(place.toString(), move.replicas() + " +" + move.addingReplicas() + " -" + move.removingReplicas()));
                found.forEach((place, move) -> System.out.println("moves " + place + " " + move));
            }
        }
    }

    private static TopicPartition place(String word) {
        int dash = word.lastIndexOf('-');
        return new TopicPartition(word.substring(0, dash), Integer.parseInt(word.substring(dash + 1)));
    }

    private static Optional<NewPartitionReassignment> targets(String word) {
        if (word.equals("null")) {
            return Optional.empty();
        }
        List<Integer> brokers = new ArrayList<>();
        for (String broker : word.split(",")) {
            brokers.add(Integer.parseInt(broker));
        }
        return Optional.of(new NewPartitionReassignment(brokers));
    }
}
