import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in this JVM.
 *
 * Standard input: a line per run, `CLASS STDIN ARG...`, each field in base64 ("=" is empty).
 * Standard output: a line per run, `STATUS OUT ERR`, the last two in base64.
 * Kafka's tools leave through Exit, which is replaced here: the first exit status of a run counts.
 */
public final class ToolRunner {
    /** Unwinds a tool that exits. Some catch and print whatever is thrown: so it has no words. */
    private static final class Left extends Error {
        Left() {
            super("", null, false, false);
        }

        @Override
        public String toString() {
            return "";
        }
    }

    private static volatile int status;
    private static volatile boolean left;

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        PrintStream trouble = System.err;
        InputStream requests = System.in;
        Exit.Procedure leave = (code, message) -> {
            synchronized (ToolRunner.class) {
                if (!left) {
                    left = true;
                    status = code;
                }
            }
            throw new Left();
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        // A tool's hooks run at its end: the console producer sends its last records in one.
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        BufferedReader lines = new BufferedReader(new InputStreamReader(requests, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ");
            String[] args = new String[fields.length - 2];
            for (int i = 0; i < args.length; i++) {
                args[i] = new String(decode(fields[i + 2]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(decode(fields[1])));
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            status = 0;
            left = false;
            run(new String(decode(fields[0]), StandardCharsets.UTF_8), args);
            left = true;
            for (Runnable hook : hooks) {
                Thread thread = new Thread(hook);
                thread.start();
                thread.join();
            }
            hooks.clear();
            System.out.flush();
            System.err.flush();
            System.setErr(trouble);
            answers.println(status + " " + encode(out) + " " + encode(err));
            answers.flush();
        }
    }

    private static void run(String tool, String[] args) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Left)) {
                e.getCause().printStackTrace();
                status = 1;
            }
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            status = 1;
        }
    }

    private static byte[] decode(String field) {
        return field.equals("=") ? new byte[0] : Base64.getDecoder().decode(field);
    }

    private static String encode(ByteArrayOutputStream bytes) {
        // "====" decodes to nothing and keeps the fields countable.
        return bytes.size() == 0 ? "====" : Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
