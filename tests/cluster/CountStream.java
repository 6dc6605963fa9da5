// Kafka Streams with exactly_once_v2: BOOTSTRAP APPLICATION FROM TO STATE_FOLDER. It counts the
// records of each key and writes each count, as KEY=COUNT. It runs until it is killed.

import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

public class CountStream {
    public static void main(String[] args) {
        var text = Serdes.String();
        var store = Stores.inMemoryKeyValueStore("counts");
        StreamsBuilder counting = new StreamsBuilder();
        counting.stream(args[2], Consumed.with(text, text))
            .groupByKey(Grouped.with(text, text))
            .count(Materialized.<String, Long>as(store).withKeySerde(text).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues((key, count) -> key + "=" + count)
            .to(args[3], Produced.with(text, text));
        Properties config = new Properties();
        config.putAll(Map.of(
            "bootstrap.servers", args[0],
            "application.id", args[1],
            "state.dir", args[4],
            "processing.guarantee", "exactly_once_v2",
            "commit.interval.ms", 100,
            // No cache: each record of the source gives a count, so none may be missing.
            "statestore.cache.max.bytes", 0,
            "replication.factor", 3,
            "session.timeout.ms", 6000,
            "producer.transaction.timeout.ms", 5000));
        config.put("auto.offset.reset", "earliest");
        new KafkaStreams(counting.build(), config).start();
    }
}
