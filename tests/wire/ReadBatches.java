// Reads one batch a line, as hex; prints its records as Kafka's consumer reads them, or the fault.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

public class ReadBatches {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            StringBuilder found = new StringBuilder();
            try {
                ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(line));
                for (MutableRecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                    batch.ensureValid();
                    try (CloseableIterator<Record> records =
                            batch.streamingIterator(BufferSupplier.create())) {
                        while (records.hasNext()) {
                            Record record = records.next();
                            record.ensureValid();
                            found.append(record.offset()).append(' ').append(record.timestamp());
                            found.append(' ').append(hex(record.key()));
                            found.append(' ').append(hex(record.value()));
                            for (Header header : record.headers()) {
                                byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
                                byte[] value = header.value();
                                found.append(' ').append(hex(ByteBuffer.wrap(name))).append('=');
                                found.append(hex(value == null ? null : ByteBuffer.wrap(value)));
                            }
                            found.append(',');
                        }
                    }
                }
            } catch (Exception error) {
                found.append("failed: ").append(error.toString().replace('\n', ' '));
            }
            System.out.println(found);
        }
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "null";
        }
        byte[] found = new byte[bytes.remaining()];
        bytes.duplicate().get(found);
        return "x" + HexFormat.of().formatHex(found);
    }
}
