import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.api.RawReader;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.Hash;
import org.apache.pulsar.client.impl.JavaStringHash;
import org.apache.pulsar.client.impl.Murmur3Hash32;

/**
 * The Java client as a peer of tests: one JSON command per line on stdin, one JSON answer per line on stdout.
 *
 * <p>A command is {@code {"do": NAME, "as": HANDLE, …}}. The answer is {@code {"ok": …}} or {@code {"error": {"type",
 * "message"}}}. Producers, consumers, readers and transactions are kept under the handle the other side chose and named
 * by it later. Options of the builders go through as they are, by the Java client's own names ({@code loadConf}), so
 * that this program knows only what a map cannot express. Bytes, message ids included, travel as base64.
 *
 * <p>Rules: commands run one after the other; nothing but answers is written to stdout; the end of stdin ends the
 * program, so it never outlives the one who started it.
 */
public final class Peer {
    /** No single wait here is longer; the other side gives up later. */
    private static final long LIMIT_SECONDS = 45;

    static final ObjectMapper JSON = JsonMapper.builder()
            .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
            .disable(JsonWriteFeature.WRITE_NAN_AS_STRINGS)
            .build();

    /** One kind of command. */
    private interface Command {
        JsonNode run(JsonNode request) throws Exception;
    }

    /** What gives messages: a consumer or a reader, and the messages it gave, by id, for acknowledging them later. */
    private record Source(Consumer<?> consumer, Reader<?> reader, Map<String, Message<?>> given) {
        Message<?> next(int timeoutMillis) throws Exception {
            return consumer != null
                    ? consumer.receive(timeoutMillis, TimeUnit.MILLISECONDS)
                    : reader.readNext(timeoutMillis, TimeUnit.MILLISECONDS);
        }

        void close() throws Exception {
            if (consumer != null) {
                consumer.close();
            } else {
                reader.close();
            }
        }
    }

    private final Map<String, Command> commands = new HashMap<>();
    private final Map<String, PulsarClient> clients = new HashMap<>();
    private final Map<String, Producer<Object>> producers = new LinkedHashMap<>();
    private final Map<String, Source> sources = new LinkedHashMap<>();
    private final Map<String, Transaction> transactions = new LinkedHashMap<>();

    private Peer() {
        commands.put("ping", request -> null);
        commands.put("client", this::client);
        commands.put("close", this::close);
        commands.put("release", this::release);
        commands.put("producer", this::producer);
        commands.put("send", this::send);
        commands.put("consumer", this::consumer);
        commands.put("reader", this::reader);
        commands.put("receive", this::receive);
        commands.put("acknowledge", this::acknowledge);
        commands.put("negative_acknowledge", this::negativeAcknowledge);
        commands.put("reconsume_later", this::reconsumeLater);
        commands.put("redeliver", this::redeliver);
        commands.put("seek", this::seek);
        commands.put("has_message", request -> JSON.valueToTree(source(request).reader().hasMessageAvailable()));
        commands.put("last_ids", this::lastIds);
        commands.put("begin", this::begin);
        commands.put("end", this::end);
        commands.put("raw", this::raw);
        commands.put("id", this::id);
        commands.put("compare", this::compare);
        commands.put("partition", Peer::partition);
        commands.put("schema_info", request -> Render.info(Schemas.of(request.get("schema")).getSchemaInfo()));
        commands.put("encode", Peer::encode);
        commands.put("decode", Peer::decode);
    }

    /** Answers commands until stdin ends. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Peer peer = new Peer();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(JSON.writeValueAsString(peer.answer(line)));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode answer(String line) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            JsonNode request = JSON.readTree(line);
            Command command = commands.get(request.path("do").asText());
            if (command == null) {
                throw new IllegalArgumentException("unknown command " + request.path("do"));
            }
            answer.set("ok", command.run(request));
        } catch (Throwable thrown) {
            Throwable cause = causeOf(thrown);
            cause.printStackTrace();
            answer.putObject("error")
                    .put("type", cause.getClass().getSimpleName())
                    .put("message", String.valueOf(cause.getMessage()));
        }
        return answer;
    }

    private static Throwable causeOf(Throwable thrown) {
        boolean wrapped = thrown instanceof ExecutionException || thrown instanceof CompletionException;
        return wrapped && thrown.getCause() != null ? causeOf(thrown.getCause()) : thrown;
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(LIMIT_SECONDS, TimeUnit.SECONDS);
    }

    // ---- clients and what is open ------------------------------------------------------------------------------------

    private JsonNode client(JsonNode request) throws Exception {
        if (clients.containsKey(text(request, "as"))) {
            return null;
        }
        ClientBuilder builder = PulsarClient.builder()
                .serviceUrl(text(request, "service_url"))
                .ioThreads(1)
                .listenerThreads(1)
                .enableTransaction(request.path("transactions").asBoolean());
        if (request.hasNonNull("token")) {
            builder.authentication("org.apache.pulsar.client.impl.auth.AuthenticationToken", text(request, "token"));
        }
        if (request.hasNonNull("trust_certificates")) {
            builder.tlsTrustCertsFilePath(text(request, "trust_certificates"));
        }
        clients.put(text(request, "as"), builder.build());
        return null;
    }

    private PulsarClient clientOf(JsonNode request) {
        return found(clients, request, "client");
    }

    private JsonNode close(JsonNode request) throws Exception {
        String name = text(request, "of");
        if (producers.containsKey(name)) {
            producers.remove(name).close();
        } else if (sources.containsKey(name)) {
            Source source = sources.remove(name);
            if (request.path("unsubscribe").asBoolean()) {
                source.consumer().unsubscribe();
            }
            source.close();
        }
        return null;
    }

    /** Closes everything but the clients; what cannot be closed any more is left behind. */
    private JsonNode release(JsonNode request) {
        List<CompletableFuture<Void>> ends = new ArrayList<>();
        producers.values().forEach(each -> ends.add(each.closeAsync()));
        sources.values().forEach(each ->
                ends.add(each.consumer() != null ? each.consumer().closeAsync() : each.reader().closeAsync()));
        transactions.values().stream()
                .filter(each -> each.getState() == Transaction.State.OPEN)
                .forEach(each -> ends.add(each.abort()));
        producers.clear();
        sources.clear();
        transactions.clear();
        CompletableFuture.allOf(ends.toArray(CompletableFuture[]::new))
                .exceptionally(thrown -> null)
                .completeOnTimeout(null, 10, TimeUnit.SECONDS)
                .join();
        return null;
    }

    // ---- publishing --------------------------------------------------------------------------------------------------

    @SuppressWarnings("unchecked")
    private JsonNode producer(JsonNode request) throws Exception {
        ProducerBuilder<Object> builder = (ProducerBuilder<Object>)
                clientOf(request).newProducer(Schemas.of(request.get("schema"))).loadConf(map(request, "options"));
        builder.topic(text(request, "topic"));
        if (request.path("key_based").asBoolean()) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        if (request.hasNonNull("keys")) {
            builder.cryptoKeyReader(new Keys(request.get("keys")));
            request.path("encrypt_with").forEach(name -> builder.addEncryptionKey(name.asText()));
        }
        Producer<Object> producer = builder.create();
        producers.put(text(request, "as"), producer);
        return JSON.createObjectNode()
                .put("producer_name", producer.getProducerName())
                .put("last_sequence_id", producer.getLastSequenceId());
    }

    /** Sends all messages without waiting in between, then answers their ids. */
    private JsonNode send(JsonNode request) throws Exception {
        Producer<Object> producer = found(producers, request, "of");
        JsonNode schema = request.get("schema");
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (JsonNode each : request.get("messages")) {
            receipts.add(message(producer, schema, each).sendAsync());
        }
        producer.flush();
        ArrayNode ids = JSON.createArrayNode();
        for (CompletableFuture<MessageId> receipt : receipts) {
            ids.add(Render.base64(await(receipt).toByteArray()));
        }
        return ids;
    }

    private TypedMessageBuilder<Object> message(Producer<Object> producer, JsonNode kind, JsonNode parts) {
        TypedMessageBuilder<Object> builder = parts.hasNonNull("txn")
                ? producer.newMessage(found(transactions, parts, "txn"))
                : producer.newMessage();
        builder.value(Schemas.value(kind, parts.get("value")));
        parts.fields().forEachRemaining(part -> {
            JsonNode given = part.getValue();
            switch (part.getKey()) {
                case "value", "txn" -> { }
                case "key" -> builder.key(given.asText());
                case "key_bytes" -> builder.keyBytes(bytes(given));
                case "ordering_key" -> builder.orderingKey(bytes(given));
                case "properties" -> given.fields().forEachRemaining(
                        pair -> builder.property(pair.getKey(), pair.getValue().asText()));
                case "event_time" -> builder.eventTime(given.asLong());
                case "sequence_id" -> builder.sequenceId(given.asLong());
                case "deliver_at" -> builder.deliverAt(given.asLong());
                case "deliver_after_ms" -> builder.deliverAfter(given.asLong(), TimeUnit.MILLISECONDS);
                case "replicate_to" -> builder.replicationClusters(texts(given));
                case "disable_replication" -> builder.disableReplication();
                default -> throw new IllegalArgumentException("unknown part of a message: " + part.getKey());
            }
        });
        return builder;
    }

    // ---- receiving ---------------------------------------------------------------------------------------------------

    private JsonNode consumer(JsonNode request) throws Exception {
        ConsumerBuilder<?> builder =
                clientOf(request).newConsumer(Schemas.of(request.get("schema"))).loadConf(map(request, "options"));
        builder.subscriptionName(text(request, "subscription"));
        builder.topics(texts(request.get("topics")));
        if (request.hasNonNull("keys")) {
            builder.cryptoKeyReader(new Keys(request.get("keys")));
        }
        if (request.path("inclusive").asBoolean()) {
            builder.startMessageIdInclusive();
        }
        if (request.hasNonNull("dead_letter")) {
            builder.deadLetterPolicy(deadLetter(request.get("dead_letter")));
        }
        Consumer<?> consumer = builder.subscribe();
        sources.put(text(request, "as"), new Source(consumer, null, new HashMap<>()));
        return null;
    }

    private static DeadLetterPolicy deadLetter(JsonNode policy) {
        var builder = DeadLetterPolicy.builder().maxRedeliverCount(policy.get("max").asInt());
        if (policy.hasNonNull("topic")) {
            builder.deadLetterTopic(policy.get("topic").asText());
        }
        if (policy.hasNonNull("retry_topic")) {
            builder.retryLetterTopic(policy.get("retry_topic").asText());
        }
        if (policy.hasNonNull("subscription")) {
            builder.initialSubscriptionName(policy.get("subscription").asText());
        }
        return builder.build();
    }

    private JsonNode reader(JsonNode request) throws Exception {
        ReaderBuilder<?> builder =
                clientOf(request).newReader(Schemas.of(request.get("schema"))).loadConf(map(request, "options"));
        builder.topic(text(request, "topic"));
        builder.startMessageId(idOf(request.get("start"), text(request, "topic")));
        if (request.path("inclusive").asBoolean()) {
            builder.startMessageIdInclusive();
        }
        if (request.hasNonNull("keys")) {
            builder.cryptoKeyReader(new Keys(request.get("keys")));
        }
        sources.put(text(request, "as"), new Source(null, builder.create(), new HashMap<>()));
        return null;
    }

    /** Answers up to so many messages, fewer when the time is over. */
    private JsonNode receive(JsonNode request) throws Exception {
        Source source = source(request);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.get("timeout_ms").asLong());
        int wanted = request.get("count").asInt();
        ArrayNode messages = JSON.createArrayNode();
        while (messages.size() < wanted) {
            long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
            Message<?> message = source.next((int) Math.max(1, left));
            if (message == null) {
                break;
            }
            ObjectNode rendered = Render.message(message);
            source.given().put(rendered.get("id").asText(), message);
            messages.add(rendered);
        }
        return messages;
    }

    private JsonNode acknowledge(JsonNode request) throws Exception {
        Source source = source(request);
        List<MessageId> ids = new ArrayList<>();
        for (JsonNode each : request.get("ids")) {
            Message<?> given = source.given().get(each.asText());
            ids.add(given != null ? given.getMessageId() : idOf(each, source.consumer().getTopic()));
        }
        String how = request.path("how").asText("each");
        Transaction txn = request.hasNonNull("txn") ? found(transactions, request, "txn") : null;
        switch (how) {
            case "each" -> {
                for (MessageId id : ids) {
                    await(source.consumer().acknowledgeAsync(id, txn));
                }
            }
            case "list" -> await(source.consumer().acknowledgeAsync(ids, txn));
            case "cumulative" -> await(source.consumer().acknowledgeCumulativeAsync(ids.get(0), txn));
            default -> throw new IllegalArgumentException("unknown way to acknowledge: " + how);
        }
        return null;
    }

    private JsonNode negativeAcknowledge(JsonNode request) {
        for (JsonNode each : request.get("ids")) {
            source(request).consumer().negativeAcknowledge(given(request, each));
        }
        return null;
    }

    private JsonNode reconsumeLater(JsonNode request) throws Exception {
        Consumer<?> consumer = source(request).consumer();
        for (JsonNode each : request.get("ids")) {
            consumer.reconsumeLater(given(request, each), request.get("delay_ms").asLong(), TimeUnit.MILLISECONDS);
        }
        return null;
    }

    private JsonNode redeliver(JsonNode request) {
        source(request).consumer().redeliverUnacknowledgedMessages();
        return null;
    }

    private JsonNode seek(JsonNode request) throws Exception {
        Source source = source(request);
        if (request.hasNonNull("time")) {
            long time = request.get("time").asLong();
            await(source.consumer() != null ? source.consumer().seekAsync(time) : source.reader().seekAsync(time));
            return null;
        }
        boolean consumes = source.consumer() != null;
        MessageId id = idOf(request.get("id"), consumes ? source.consumer().getTopic() : source.reader().getTopic());
        await(consumes ? source.consumer().seekAsync(id) : source.reader().seekAsync(id));
        return null;
    }

    private JsonNode lastIds(JsonNode request) throws Exception {
        ArrayNode ids = JSON.createArrayNode();
        Source source = source(request);
        var last = source.consumer() != null
                ? source.consumer().getLastMessageIds()
                : source.reader().getLastMessageIds();
        last.forEach(id -> ids.add(Render.base64(id.toByteArray())));
        return ids;
    }

    // ---- transactions ------------------------------------------------------------------------------------------------

    private JsonNode begin(JsonNode request) throws Exception {
        Transaction txn = await(clientOf(request)
                .newTransaction()
                .withTransactionTimeout(request.path("timeout_ms").asLong(30_000), TimeUnit.MILLISECONDS)
                .build());
        transactions.put(text(request, "as"), txn);
        return JSON.valueToTree(txn.getTxnID().toString());
    }

    private JsonNode end(JsonNode request) throws Exception {
        Transaction txn = found(transactions, request, "of");
        await(request.get("commit").asBoolean() ? txn.commit() : txn.abort());
        return null;
    }

    // ---- bytes, ids, hashes ------------------------------------------------------------------------------------------

    /** Answers the first entries of a topic as they are stored: metadata by Java's parser, body as it is. */
    private JsonNode raw(JsonNode request) throws Exception {
        RawReader reader = await(RawReader.create(clientOf(request), text(request, "topic"), text(request, "as")));
        try {
            ArrayNode entries = JSON.createArrayNode();
            while (entries.size() < request.get("count").asInt()) {
                try (RawMessage message = await(reader.readNextAsync())) {
                    entries.add(Render.entry(message.getHeadersAndPayload()));
                }
            }
            return entries;
        } finally {
            await(reader.closeAsync());
        }
    }

    private JsonNode id(JsonNode request) throws Exception {
        return Render.id(idOf(request.get("id"), null));
    }

    private JsonNode compare(JsonNode request) throws Exception {
        MessageId one = idOf(request.get("one"), null);
        MessageId other = idOf(request.get("other"), null);
        return JSON.createObjectNode()
                .put("equal", one.equals(other))
                .put("order", Integer.signum(one.compareTo(other)));
    }

    /** Answers the partition of a key; the key of bytes is hashed as its base64 text, as the producer does. */
    private static JsonNode partition(JsonNode request) {
        boolean murmur = text(request, "scheme").startsWith("Murmur3");
        Hash hash = murmur ? Murmur3Hash32.getInstance() : JavaStringHash.getInstance();
        return JSON.valueToTree(Math.floorMod(hash.makeHash(text(request, "key")), request.get("partitions").asInt()));
    }

    @SuppressWarnings("unchecked")
    private static JsonNode encode(JsonNode request) {
        Schema<Object> schema = (Schema<Object>) Schemas.of(request.get("schema"));
        Object value = Schemas.value(request.get("schema"), request.get("value"));
        return JSON.valueToTree(Render.base64(schema.encode(value)));
    }

    private static JsonNode decode(JsonNode request) {
        return Render.value(Schemas.of(request.get("schema")).decode(bytes(request.get("data"))));
    }

    // ---- parts of requests -------------------------------------------------------------------------------------------

    private Source source(JsonNode request) {
        return found(sources, request, "of");
    }

    private Message<?> given(JsonNode request, JsonNode id) {
        Message<?> message = source(request).given().get(id.asText());
        if (message == null) {
            throw new IllegalArgumentException("this consumer gave no message " + id);
        }
        return message;
    }

    private static <T> T found(Map<String, T> where, JsonNode request, String field) {
        T thing = where.get(text(request, field));
        if (thing == null) {
            throw new IllegalArgumentException("nothing is open as " + request.get(field));
        }
        return thing;
    }

    private static MessageId idOf(JsonNode given, String topic) throws Exception {
        return switch (given.asText()) {
            case "earliest" -> MessageId.earliest;
            case "latest" -> MessageId.latest;
            default -> {
                MessageId bare = MessageId.fromByteArray(bytes(given));
                // Wrapped with its topic, an id of chunks would no longer be known for one.
                boolean plain = ((MessageIdAdv) bare).getFirstChunkMessageId() == null;
                yield topic != null && plain ? MessageId.fromByteArrayWithTopic(bytes(given), topic) : bare;
            }
        };
    }

    private static String text(JsonNode request, String field) {
        return request.required(field).asText();
    }

    static byte[] bytes(JsonNode given) {
        return Base64.getDecoder().decode(given.asText());
    }

    private static List<String> texts(JsonNode given) {
        List<String> texts = new ArrayList<>();
        given.forEach(each -> texts.add(each.asText()));
        return texts;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> map(JsonNode request, String field) {
        return request.hasNonNull(field) ? JSON.convertValue(request.get(field), Map.class) : Map.of();
    }

    /** Encryption keys from the request: {@code {"public": {name: pem}, "private": …}}; a public key says whose it is. */
    private static final class Keys implements CryptoKeyReader {
        private final transient JsonNode keys;

        Keys(JsonNode keys) {
            this.keys = keys;
        }

        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return key("public", name, Map.of("owner", name));
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return key("private", name, metadata);
        }

        private EncryptionKeyInfo key(String side, String name, Map<String, String> metadata) {
            String pem = keys.path(side).path(name).asText(null);
            // Null says "not this one": the client then tries the other keys of the message.
            return pem == null ? null : new EncryptionKeyInfo(pem.getBytes(StandardCharsets.UTF_8), metadata);
        }
    }
}
