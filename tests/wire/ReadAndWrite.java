// Reads "CLASS VERSION HEX" lines, parses each message with Kafka's class, writes it again as hex.

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class ReadAndWrite {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[1]);
            byte[] bytes = HexFormat.of().parseHex(words[2]);
            Message message = (Message) Class.forName(words[0])
                .getConstructor().newInstance();
            ByteBufferAccessor source = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
            message.read(source, version);
            if (source.remaining() != 0) {
                throw new IllegalStateException(source.remaining() + " bytes left of " + line);
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer target = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(target), cache, version);
            System.out.println(HexFormat.of().formatHex(target.array()));
        }
    }
}
