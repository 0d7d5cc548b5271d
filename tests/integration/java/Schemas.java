import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.google.protobuf.Message;
import java.nio.ByteBuffer;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Date;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Schemas as requests describe them, and values for them from JSON (written as {@link Render#value} writes them).
 *
 * <p>A description is a name ({@code "int32"}, {@code "auto_consume"}, {@code "json:flight"}, {@code "avro:flight"},
 * {@code "protobuf:com.google.protobuf.Timestamp"}, {@code "protobuf_native:…"}) or, for pairs, {@code {"key": …,
 * "value": …, "encoding": "SEPARATED"}}. None means bytes.
 */
final class Schemas {
    /** A record with the kinds of fields that differ between clients; all may be null, but the primitive ones. */
    public static final class Flight {
        public String carrier;
        public Integer delay;
        public long distance;
        public double fuel;
        public float load;
        public boolean diverted;
        public byte[] raw;
        public Cabin cabin;
        public Seat seat;
        public List<String> stops;
        public Map<String, Integer> counts;
    }

    /** An enumeration inside the record. */
    public enum Cabin {
        ECONOMY,
        BUSINESS
    }

    /** A record inside the record. */
    public static final class Seat {
        public int row;
        public String letter;
    }

    private static final Map<String, Schema<?>> NAMED = Map.ofEntries(
            Map.entry("bytes", Schema.BYTES),
            Map.entry("bytebuffer", Schema.BYTEBUFFER),
            Map.entry("string", Schema.STRING),
            Map.entry("int8", Schema.INT8),
            Map.entry("int16", Schema.INT16),
            Map.entry("int32", Schema.INT32),
            Map.entry("int64", Schema.INT64),
            Map.entry("bool", Schema.BOOL),
            Map.entry("float", Schema.FLOAT),
            Map.entry("double", Schema.DOUBLE),
            Map.entry("date", Schema.DATE),
            Map.entry("time", Schema.TIME),
            Map.entry("timestamp", Schema.TIMESTAMP),
            Map.entry("instant", Schema.INSTANT),
            Map.entry("local_date", Schema.LOCAL_DATE),
            Map.entry("local_time", Schema.LOCAL_TIME),
            Map.entry("local_date_time", Schema.LOCAL_DATE_TIME));

    private Schemas() {}

    /** Makes a schema; every call a new one where schemas keep what they learned of a topic. */
    static Schema<?> of(JsonNode kind) {
        if (kind == null || kind.isNull()) {
            return Schema.BYTES;
        }
        if (kind.isObject()) {
            KeyValueEncodingType encoding = KeyValueEncodingType.valueOf(kind.path("encoding").asText("INLINE"));
            return Schema.KeyValue(of(kind.get("key")), of(kind.get("value")), encoding);
        }
        String[] words = kind.asText().split(":", 2);
        return switch (words[0]) {
            case "auto_consume" -> Schema.AUTO_CONSUME();
            case "auto_produce" -> Schema.AUTO_PRODUCE_BYTES();
            case "json" -> Schema.JSON(SchemaDefinition.<Flight>builder().withPojo(Flight.class).build());
            case "avro" -> Schema.AVRO(SchemaDefinition.<Flight>builder().withPojo(Flight.class).build());
            case "protobuf" -> Schema.PROTOBUF(message(words[1]));
            case "protobuf_native" -> Schema.PROTOBUF_NATIVE(message(words[1]));
            default -> named(kind.asText());
        };
    }

    private static Schema<?> named(String name) {
        Schema<?> schema = NAMED.get(name);
        if (schema == null) {
            throw new IllegalArgumentException("unknown schema " + name);
        }
        return schema;
    }

    private static Class<? extends Message> message(String name) {
        try {
            return Class.forName(name).asSubclass(Message.class);
        } catch (ClassNotFoundException error) {
            throw new IllegalArgumentException("no protobuf class " + name, error);
        }
    }

    /** Makes the value a producer with the schema takes; null stays null. */
    static Object value(JsonNode kind, JsonNode value) {
        if (value == null || value.isNull()) {
            return null;
        }
        if (kind == null || kind.isNull()) {
            return Peer.bytes(value);
        }
        if (kind.isObject()) {
            return new KeyValue<>(value(kind.get("key"), value.get("key")), value(kind.get("value"), value.get("value")));
        }
        String[] words = kind.asText().split(":", 2);
        return switch (words[0]) {
            case "bytes", "auto_produce" -> Peer.bytes(value);
            case "bytebuffer" -> ByteBuffer.wrap(Peer.bytes(value));
            case "json", "avro" -> flight(value);
            case "protobuf", "protobuf_native" -> parsed(message(words[1]), Peer.bytes(value));
            default -> simple(words[0], value);
        };
    }

    private static Object simple(String name, JsonNode value) {
        return switch (name) {
            case "string" -> value.asText();
            case "int8" -> (byte) value.asInt();
            case "int16" -> (short) value.asInt();
            case "int32" -> value.asInt();
            case "int64" -> value.asLong();
            case "bool" -> value.asBoolean();
            case "float" -> value.floatValue();
            case "double" -> value.doubleValue();
            case "date" -> new Date(value.asLong());
            case "time" -> new Time(value.asLong());
            case "timestamp" -> new Timestamp(value.asLong());
            case "instant" -> Instant.parse(value.asText());
            case "local_date" -> LocalDate.parse(value.asText());
            case "local_time" -> LocalTime.parse(value.asText());
            case "local_date_time" -> LocalDateTime.parse(value.asText());
            default -> throw new IllegalArgumentException("unknown schema " + name);
        };
    }

    private static Flight flight(JsonNode value) {
        try {
            return Peer.JSON.treeToValue(value, Flight.class);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(error);
        }
    }

    private static Object parsed(Class<? extends Message> kind, byte[] data) {
        try {
            return kind.getMethod("parseFrom", byte[].class).invoke(null, (Object) data);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(error);
        }
    }
}
