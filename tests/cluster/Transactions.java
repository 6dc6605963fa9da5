// Transactions of Kafka's producer: BOOTSTRAP TOPIC GROUP COUNT. It consumes nothing of its own: it
// writes COUNT transactions of 8 records over 4 partitions, aborts each third one, and commits the
// number of each transaction as the group's offset. Then a second producer of its id fences it.

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    public static void main(String[] args) {
        TopicPartition place = new TopicPartition(args[1], 0);
        KafkaProducer<String, String> first = producer(args);
        first.initTransactions();
        for (int number = 0; number < Integer.parseInt(args[3]); number++) {
            first.beginTransaction();
            write(first, args[1], String.valueOf(number));
            Map<TopicPartition, OffsetAndMetadata> position = Map.of(place, new OffsetAndMetadata(number));
            first.sendOffsetsToTransaction(position, new ConsumerGroupMetadata(args[2]));
            // An abort drops what the producer has not sent yet.
            first.flush();
            if (number % 3 == 1) {
                first.abortTransaction();
                System.out.println("aborted " + number);
            } else {
                first.commitTransaction();
                System.out.println("committed " + number);
            }
        }
        first.beginTransaction();
        write(first, args[1], "open");
        first.flush();
        KafkaProducer<String, String> second = producer(args);
        second.initTransactions();
        try {
            first.commitTransaction();
            System.out.println("the first was not fenced");
        } catch (KafkaException error) {
            System.out.println(error.getClass().getSimpleName());
        }
        second.beginTransaction();
        write(second, args[1], "last");
        second.commitTransaction();
        second.close();
        first.close();
    }

    private static KafkaProducer<String, String> producer(String[] args) {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", args[0], "transactional.id", args[1], "linger.ms", 0);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private static void write(KafkaProducer<String, String> producer, String topic, String value) {
        for (int i = 0; i < 8; i++) {
            producer.send(new ProducerRecord<>(topic, i % 4, null, value));
        }
    }
}
