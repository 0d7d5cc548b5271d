import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SizeUnit;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * One measurement of the Java client in a JVM of its own: the counterpart of worker.py, with the same request on the
 * command line and the same last line, {@code {"wall": seconds, "cpu": seconds}}.
 *
 * <p>CPU is that of the whole process, the compiler's and the collector's threads included. The start of the JVM is not
 * measured, and the work is done unmeasured first, {@code warmUp} times with the same number of messages each, so
 * that the hot paths are compiled: publishing to a topic of its own, receiving by a subscription of its own.
 */
public final class Worker {
    private static final int PAYLOADS = 256;

    /** What is measured; all that is prepared, producers for example, is prepared already. */
    private interface Work {
        void run() throws Exception;
    }

    private final JsonNode request;
    private final PulsarClient client;
    private final int count;
    private final int size;

    private Worker(JsonNode request, PulsarClient client) {
        this.request = request;
        this.client = client;
        this.count = request.get("count").asInt();
        this.size = request.get("size").asInt();
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode request = new ObjectMapper().readTree(arguments[0]);
        ClientBuilder builder = PulsarClient.builder()
                .serviceUrl(request.get("url").asText())
                .memoryLimit(0, SizeUnit.BYTES)
                .statsInterval(0, TimeUnit.SECONDS);
        if (request.hasNonNull("authority")) {
            builder.tlsTrustCertsFilePath(request.get("authority").asText());
        }
        try (PulsarClient client = builder.build()) {
            Worker worker = new Worker(request, client);
            String topic = request.get("topic").asText();
            for (int number = 0; number < request.get("warmUp").asInt(); number++) {
                worker.prepare(worker.reads() ? topic : topic + "-warm-up").run();
            }
            Work work = worker.prepare(topic);
            var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpu = system.getProcessCpuTime();
            long wall = System.nanoTime();
            work.run();
            wall = System.nanoTime() - wall;
            cpu = system.getProcessCpuTime() - cpu;
            System.out.println("{\"wall\": " + wall / 1e9 + ", \"cpu\": " + cpu / 1e9 + "}");
        }
    }

    private boolean reads() {
        return switch (request.get("action").asText()) {
            case "receive", "batch-receive", "columns" -> true;
            default -> false;
        };
    }

    private Work prepare(String topic) throws Exception {
        String action = request.get("action").asText();
        return switch (action) {
            // The Java client has no bulk call.
            case "publish", "send-many", "send-table" -> publish(topic, false);
            case "publish-callback" -> publish(topic, true);
            case "receive" -> () -> receive(topic);
            case "batch-receive" -> () -> batchReceive(topic, false);
            // Nor has it columns: the fields that ours makes columns of are read from each message.
            case "columns" -> () -> batchReceive(topic, true);
            default -> throw new IllegalArgumentException("no such action for Java: " + action);
        };
    }

    private byte[][] payloads() {
        Random random = new Random(1);
        byte[][] payloads = new byte[PAYLOADS][];
        for (int number = 0; number < PAYLOADS; number++) {
            // Half text-like, half random, as in worker.py.
            byte[] text = ("flight," + number + ",").getBytes(StandardCharsets.US_ASCII);
            byte[] payload = new byte[size];
            random.nextBytes(payload);
            for (int place = 0; place < size / 2; place++) {
                payload[place] = text[place % text.length];
            }
            payloads[number] = payload;
        }
        return payloads;
    }

    private Work publish(String topic, boolean counts) throws Exception {
        Producer<byte[]> producer = client.newProducer(Schema.BYTES)
                .topic(topic)
                .enableBatching(request.get("batched").asBoolean())
                .batchingMaxMessages(1000)
                .batchingMaxBytes(128 * 1024)
                .maxPendingMessages(50_000)
                .blockIfQueueFull(true)
                .compressionType(CompressionType.valueOf(request.get("compression").asText()))
                .create();
        byte[][] payloads = payloads();
        boolean described = request.get("described").asBoolean();
        return () -> {
            CountDownLatch done = new CountDownLatch(counts ? count : 0);
            for (int number = 0; number < count; number++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(payloads[number & (PAYLOADS - 1)]);
                if (described) {
                    message.key("flight-" + number)
                            .property("carrier", "C" + number % 16)
                            .property("origin", "airport-" + number)
                            .eventTime(1_700_000_000_000L + number);
                }
                var sent = message.sendAsync();
                if (counts) {
                    sent.thenAccept(id -> done.countDown());
                }
            }
            producer.flush();
            // Flushing may end before the last callback has run.
            check(done.await(30, TimeUnit.SECONDS), "callbacks are missing");
        };
    }

    private Consumer<byte[]> subscribe(String topic) throws Exception {
        return client.newConsumer(Schema.BYTES)
                .topic(topic)
                .subscriptionName("bench-" + UUID.randomUUID())
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .batchReceivePolicy(BatchReceivePolicy.builder()
                        .maxNumMessages(1000)
                        .maxNumBytes(10 * 1024 * 1024)
                        .timeout(1, TimeUnit.SECONDS)
                        .build())
                .subscribe();
    }

    private void receive(String topic) throws Exception {
        long bytes = 0;
        try (Consumer<byte[]> consumer = subscribe(topic)) {
            for (int number = 0; number < count; number++) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
                check(message != null, "messages are missing");
                bytes += message.getData().length;
                consumer.acknowledge(message);
            }
        }
        check(bytes == (long) count * size, "other messages than were published");
    }

    private void batchReceive(String topic, boolean fields) throws Exception {
        long[] numbers = new long[fields ? count * 4 : 0];
        byte[][] values = new byte[fields ? count : 0][];
        int received = 0;
        long bytes = 0;
        try (Consumer<byte[]> consumer = subscribe(topic)) {
            while (received < count) {
                Messages<byte[]> messages = consumer.batchReceive();
                Message<byte[]> last = null;
                for (Message<byte[]> message : messages) {
                    byte[] value = message.getData();
                    bytes += value.length;
                    if (fields) {
                        MessageIdAdv id = (MessageIdAdv) message.getMessageId();
                        values[received] = value;
                        numbers[received * 4] = message.getPublishTime();
                        numbers[received * 4 + 1] = id.getLedgerId();
                        numbers[received * 4 + 2] = id.getEntryId();
                        numbers[received * 4 + 3] = id.getBatchIndex();
                    }
                    received++;
                    last = message;
                }
                if (last != null) {
                    consumer.acknowledgeCumulative(last);
                }
            }
        }
        check(bytes == (long) count * size, "other messages than were published");
        check(!fields || Arrays.stream(numbers).sum() != 0 && values[count - 1] != null, "fields are missing");
    }

    private static void check(boolean holds, String text) {
        if (!holds) {
            throw new IllegalStateException(text);
        }
    }
}
